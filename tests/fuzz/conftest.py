"""One client for all examples of a test; whatever was done, the audit has nothing to say."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from queasy import SyncClient
from tests.fuzz import profiles
from tests.servers import Server, ServerKind, start_server, why_absent

if settings.get_current_profile_name() not in profiles.NAMES:  # none was asked for
    settings.load_profile("quick")


@pytest.fixture(scope="package")
def own_server() -> Iterator[Server]:
    """Not the one all other tests share: every key on it is looked at."""
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
