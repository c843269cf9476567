"""Each seeded mistake makes the promise that it names fail with an AssertionError."""

from collections.abc import Iterator

import pytest
import redis

from tests.servers import ServerKind, start_server
from tests.store import (
    mutants,
    mutants_bounds,
    mutants_consumers,
    mutants_dispatch,
    mutants_given_up,
    mutants_handoff,
    mutants_idempotency,
    mutants_limits,
    mutants_order,
    mutants_outages,
    mutants_plain,
    mutants_protocol,
    mutants_server,
    mutants_suspects,
    mutants_waiters,
    mutants_waking,
    promises,
    promises_bounds,
    promises_consumers,
    promises_dispatch,
    promises_given_up,
    promises_handoff,
    promises_idempotency,
    promises_limits,
    promises_order,
    promises_outages,
    promises_plain,
    promises_protocol,
    promises_server,
    promises_suspects,
    promises_waiters,
    promises_waking,
)
from tests.store.harness import Harness, load
from tests.store.mutant import MUTANTS
from tests.store.promise import PROMISES

ENLISTED = (  # importing them registers mutants and promises
    mutants, mutants_bounds, mutants_consumers, mutants_dispatch, mutants_given_up,
    mutants_handoff, mutants_idempotency, mutants_limits, mutants_order, mutants_outages,
    mutants_plain, mutants_protocol, mutants_server, mutants_suspects,
    mutants_waiters, mutants_waking,
    promises, promises_bounds, promises_consumers, promises_dispatch, promises_given_up,
    promises_handoff, promises_idempotency, promises_limits, promises_order, promises_outages,
    promises_plain, promises_protocol, promises_server, promises_suspects,
    promises_waiters, promises_waking,
)  # fmt: skip


@pytest.fixture(scope="module")
def victim(kind: ServerKind) -> Iterator[redis.Redis]:
    """A server of its own: a mutant registers the same function names."""
    with start_server(kind) as server, server.client(decode_responses=False) as client:
        yield client


@pytest.mark.parametrize("name", MUTANTS)
def test_a_seeded_mistake_breaks_its_promise(victim: redis.Redis, name: str) -> None:
    mutant = MUTANTS[name]
    load(victim, mutant.text())
    victim.flushall()
    harness = Harness(victim)
    with pytest.raises(AssertionError):
        PROMISES[mutant.breaks](harness)


def test_promises_that_mutants_break_hold_without_a_mistake(victim: redis.Redis) -> None:
    load(victim)
    for promise in {mutant.breaks for mutant in MUTANTS.values()}:
        harness = Harness(victim)
        PROMISES[promise](harness)
        harness.audit()
