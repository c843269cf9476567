from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.pair import Pair
from tests.servers import Server, ServerKind, start_server


def pytest_addoption(parser: pytest.Parser) -> None:
    """These options exist if `tests/model` is named on the command line."""
    parser.addoption("--steps", type=int, default=20_000, help="steps of the model, per server")
    parser.addoption("--model-seed", type=int, default=None, help="take the same steps again")


@pytest.fixture(scope="module")
def own_server(kind: ServerKind) -> Iterator[Server]:
    """A server of their own, because it is flushed between runs."""
    with start_server(kind) as running:
        yield running


@pytest.fixture
def pair(own_server: Server) -> Iterator[Pair]:
    pair = Pair(own_server.admin_url)  # the admin may read every key
    yield pair
    pair.link.close()
