"""A fleet of workers for each test, and one idle worker for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, available_kinds, start_server
from tests.worker.fleet import Fleet, fleet_on
from tests.worker.idling import Idling
from tests.worker.inline import emails, seen

__all__ = ["emails", "seen"]  # fixtures


def pytest_addoption(parser: pytest.Parser) -> None:
    """Available when a path in `tests/worker` is on the command line; else the default applies."""
    parser.addoption("--restarts", type=int, default=12, help="restarts of workers under load")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests of the idle worker last, so that it idles while the others run."""
    items.sort(key=lambda item: item.path.name == "test_idle.py")


@pytest.fixture
def fleet(server: Server, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(server.url, prefix, tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def idling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idling]:
    """An idle worker on a server of its own, of one kind: its cost does not depend on the kind."""
    kinds = available_kinds()
    if not kinds:
        pytest.skip("no server: NOT TESTED")
    folder = tmp_path_factory.mktemp("idle")
    with (
        start_server(kinds[0], appendonly=True) as server,
        fleet_on(server.url, "idle", folder) as fleet,
        Idling(server, fleet) as running,
    ):
        yield running


@pytest.fixture(scope="session", autouse=True)
def _idle_from_the_start(request: pytest.FixtureRequest) -> None:
    if any("idling" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("idling")
