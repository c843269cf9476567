"""A command that fails inside a function leaves a state the audit accepts, and loses no job.

A second fault, while writes are undone after a first one, is out of scope."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from queasy.store.records import DispatchItem
from tests.servers import Server, ServerKind, start_server
from tests.store import scenarios_clients
from tests.store.faults import Seen, Stage, commands_in_the_library, ids_in, wrapped_source
from tests.store.harness import Dump, Harness, load, send, words_of
from tests.store.scenarios import SCENARIOS

ENLISTED = (scenarios_clients,)  # importing them registers their scenarios
MOST_CALLS = 1000
UNTOUCHED = "nothing changed"
IN_PHASES = {"dequeue", "bump"}  # ending, sweeping and taking are separate commits
# Valkey and newer Redis reply NOPERM; inside a function Redis 7.0 has another text.
DENIED = re.compile(r"NOPERM|NoPermission|ACL failure|can't run this command")


@pytest.fixture(scope="module")
def faulty(kind: ServerKind) -> Iterator[Server]:
    """A server of its own: the wrapped build registers the same function names."""
    with start_server(kind) as server:
        yield server


@pytest.fixture(scope="module")
def admin(faulty: Server) -> Iterator[redis.Redis]:
    with faulty.client(decode_responses=False) as client:
        load(client, wrapped_source())
        yield client


@pytest.fixture(scope="module")
def limited(faulty: Server, admin: redis.Redis) -> Iterator[redis.Redis]:
    """A connection of a user; the tests change the rights of that user."""
    admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all")
    with faulty.client(decode_responses=False, username="limited", password="any") as client:
        yield client


@pytest.fixture(scope="module")
def tally(kind: ServerKind) -> Iterator[Counter[str]]:
    counter: Counter[str] = Counter()
    yield counter
    print(f"\nfaults on {kind}: {dict(counter)}")


@pytest.fixture(params=list(SCENARIOS))
def stage(request: pytest.FixtureRequest, admin: redis.Redis) -> Iterator[Stage]:
    harness = Harness(admin)
    stage = Stage(harness, SCENARIOS[request.param](harness))
    harness.audit()
    yield stage
    harness.clear()


def test_a_fault_at_any_command_leaves_a_sound_queue(stage: Stage, tally: Counter[str]) -> None:
    clean = stage.run()
    assert not clean.refused, clean.reply
    for number in range(1, MOST_CALLS):
        stage.restore()
        seen = stage.run(fault_at=number)
        if not seen.fired:
            assert number > 1, "no command failed"
            return
        if seen.refused:
            assert "INJECTED" in str(seen.reply)
        tally["injected: " + _check(stage, seen, clean)] += 1
    pytest.fail(f"more than {MOST_CALLS} commands in one call")


def test_a_missing_permission_leaves_a_sound_queue(
    stage: Stage, limited: redis.Redis, admin: redis.Redis, tally: Counter[str]
) -> None:
    clean = stage.run()
    for command in commands_in_the_library(admin):
        stage.restore()
        admin.execute_command("ACL", "SETUSER", "limited", "+@all", f"-{command}")
        seen = stage.run_as(limited)
        if seen.refused:
            assert DENIED.search(words_of(seen.reply)), words_of(seen.reply)
        tally["denied: " + _check(stage, seen, clean)] += 1


@pytest.mark.parametrize("rule", ["-spublish", "resetchannels"])
def test_a_user_that_may_not_publish_leaves_waiters_for_others(
    admin: redis.Redis, limited: redis.Redis, rule: str
) -> None:
    """Bug: it removed all waiters, so that dispatches of other users woke no client."""
    h = Harness(admin)
    for client in ("c1", "c2"):
        h.join(client)
        assert h.dequeue(client, waiter=client, waits=8).jobs == []
    admin.execute_command("ACL", "SETUSER", "limited", "+@all", rule)
    try:
        (done,) = send(limited, h.commands.dispatch([DispatchItem("a", b"1")]), h.time)
    finally:
        admin.execute_command("ACL", "SETUSER", "limited", "+@all", "&*")
    assert done.status == "created"
    assert h.call(h.commands.counts()).waiters == 2
    h.audit()
    h.clear()


def _check(stage: Stage, seen: Seen, clean: Seen) -> str:
    """Asserts that the audit passes, the call now works, and no job is lost; returns the kind."""
    stage.h.audit()
    how = _classify(stage, seen, clean)
    again = stage.run()
    assert not again.refused, again.reply
    stage.h.audit()
    if how == UNTOUCHED:
        assert ids_in(again.state) == ids_in(clean.state)
        return how
    # A repeat may do more than one call: a bounded sweep or eviction continues.
    assert ids_in(clean.state) <= ids_in(again.state), "a job was lost"
    stage.drain()
    stage.h.audit()
    return how


def _classify(stage: Stage, seen: Seen, clean: Seen) -> str:
    if not seen.refused:
        return "succeeded despite the fault"
    if seen.state == stage.before:
        return UNTOUCHED
    if _without_waiters(seen.state) == _without_waiters(clean.state):
        return "applied completely, but replied with an error"
    assert stage.command.function in IN_PHASES, "part of a commit was left"
    return "an earlier commit was applied"


def _without_waiters(state: Dump) -> Dump:
    of_waiters = (":waiters", ":waiter_info")
    return {label: content for label, content in state.items() if not label.endswith(of_waiters)}
