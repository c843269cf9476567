"""Each seeded mistake is caught: by the promise that is meant to, with an AssertionError."""

from collections.abc import Iterator

import pytest
import redis

from tests.servers import ServerKind, start_server
from tests.store import (
    mutants_given_up,
    mutants_hand,
    mutants_suspects,
    promises,
    promises_bounds,
    promises_calls,
    promises_dispatch,
    promises_given_up,
    promises_hand,
    promises_order,
    promises_plain,
    promises_server,
    promises_suspects,
)
from tests.store.harness import Harness, load
from tests.store.mutants import MUTANTS
from tests.store.promise import PROMISES

ENLISTED = (  # by being imported
    mutants_given_up, mutants_hand, mutants_suspects, promises, promises_bounds, promises_calls,
    promises_dispatch, promises_given_up, promises_hand, promises_order, promises_plain,
    promises_server, promises_suspects,
)  # fmt: skip


@pytest.fixture(scope="module")
def victim(kind: ServerKind) -> Iterator[redis.Redis]:
    """A server of its own: a mutant has the names of the real library."""
    with start_server(kind) as server, server.client(decode_responses=False) as client:
        yield client


@pytest.mark.parametrize("name", MUTANTS)
def test_a_seeded_mistake_is_caught(victim: redis.Redis, name: str) -> None:
    mutant = MUTANTS[name]
    load(victim, mutant.text())
    victim.flushall()
    harness = Harness(victim)
    with pytest.raises(AssertionError):
        PROMISES[mutant.breaks](harness)


def test_without_a_mistake_the_same_promises_hold(victim: redis.Redis) -> None:
    load(victim)
    for promise in {mutant.breaks for mutant in MUTANTS.values()}:
        harness = Harness(victim)
        PROMISES[promise](harness)
        harness.audit()
