"""One client for all examples of a test, on a server of its own."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from queasy import SyncClient
from tests.fuzz import profiles
from tests.servers import Server, ServerKind, start_server, why_absent

if settings.get_current_profile_name() not in profiles.NAMES:  # no profile on the command line
    settings.load_profile("quick")


@pytest.fixture(scope="package")
def own_server() -> Iterator[Server]:
    """A server that other tests do not share: fuzz tests inspect every key."""
    if reason := why_absent(ServerKind.VALKEY):
        pytest.skip(reason)
    with start_server(ServerKind.VALKEY) as running:
        yield running


@pytest.fixture
def fuzzed(own_server: Server) -> Iterator[SyncClient]:
    own_server.call("FLUSHALL")
    with SyncClient(own_server.url, prefix="fuzz", timeout=20) as client:
        yield client


@pytest.fixture
def raw(own_server: Server) -> Iterator[Any]:
    with own_server.client(decode_responses=False) as connection:
        yield connection
