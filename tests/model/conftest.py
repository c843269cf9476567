from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.pair import Pair
from tests.servers import Server, ServerKind, start_server


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when `tests/model` is named on the command line; the defaults hold elsewhere."""
    parser.addoption("--steps", type=int, default=20_000, help="steps of the model, per server")
    parser.addoption("--model-seed", type=int, default=None, help="to take the same steps again")


@pytest.fixture(scope="module")
def own_server(kind: ServerKind) -> Iterator[Server]:
    """Not the one all other tests share: it is flushed between runs."""
    with start_server(kind) as running:
        yield running


@pytest.fixture
def pair(own_server: Server) -> Iterator[Pair]:
    pair = Pair(own_server.admin_url)  # who may see every key
    yield pair
    pair.link.close()
