"""Scenarios of clients, sweeps, settings and records."""

from typing import Any

from queasy.options import JobOptions
from queasy.outcomes import Broken, Fail
from queasy.store.command import Command
from tests.store.harness import Harness, endings_of
from tests.store.scenarios import OPTIONS, WHY, busy, scenario, with_waiters

# clients


@scenario
def register_creates(h: Harness) -> Command[Any]:
    return h.commands.register("c1", 30, b"worker")


@scenario
def register_renews(h: Harness) -> Command[Any]:
    h.call(h.commands.register("c1", 30, b"worker"))
    return h.commands.register("c1", 60, b"another")


@scenario
def bump_of_live_and_lost_clients(h: Harness) -> Command[Any]:
    busy(h)
    h.cancel("a", "b", running=True)
    return h.commands.bump(["c1", "ghost", "c2"], 30)


@scenario
def bump_that_sweeps(h: Harness) -> Command[Any]:
    busy(h)
    h.join("c3", lease=60)
    h.later(9)
    h.bump("c3", lease=60)
    h.later(9)
    h.bump("c3", lease=60)
    h.later(9)
    h.bump("c3", lease=60)
    h.later(5)
    return h.commands.bump(["c3"], 60)


@scenario
def extend_of_a_lease(h: Harness) -> Command[Any]:
    jobs = busy(h)
    return h.commands.extend("a", jobs[0].token, 90)


def _many_leases(h: Harness, client: str = "c1") -> None:
    h.call(h.commands.configure(fail_handler=True))
    if not client.startswith("~"):
        h.join(client, lease=5)
    h.dispatch_many(*(f"j{n:03}" for n in range(120)))
    h.dispatch("j120", options=JobOptions(max_stalls=1))
    h.take(client, limit=121, lease=5, request="r0")
    h.dispatch("j000", b"held")


@scenario
def sweep_of_one_client(h: Harness) -> Command[Any]:
    busy(h)
    h.call(h.commands.configure(fail_handler=True, limits=JobOptions(max_stalls=1)))
    with_waiters(h)
    h.later(9)
    h.dispatch("x")
    h.later(9)
    h.dispatch("x")
    h.later(9)
    h.dispatch("x")
    h.later(6)
    return h.commands.sweep()


@scenario
def sweep_in_part(h: Harness) -> Command[Any]:
    _many_leases(h)
    h.later(6)
    return h.commands.sweep()


@scenario
def sweep_of_the_rest(h: Harness) -> Command[Any]:
    _many_leases(h)
    h.later(6)
    h.sweep()
    return h.commands.sweep()


@scenario
def evict_in_part(h: Harness) -> Command[Any]:
    _many_leases(h)
    return h.commands.evict("c1")


@scenario
def evict_of_the_rest(h: Harness) -> Command[Any]:
    _many_leases(h)
    h.call(h.commands.evict("c1"))
    return h.commands.evict("c1")


@scenario
def evict_of_a_client_that_leaves(h: Harness) -> Command[Any]:
    busy(h)
    with_waiters(h)
    return h.commands.evict("c1")


# the whole queue


def _records(h: Harness) -> None:
    h.dispatch_many("a", "b", "c")
    h.dispatch("d", options=OPTIONS)
    h.dispatch_many("e", "f")
    jobs = h.take(limit=6)
    h.call(h.commands.settle(endings_of(jobs[:4], Fail(WHY)) + endings_of(jobs[4:], Broken(WHY))))
    h.later(1)


@scenario
def configure_everything(h: Harness) -> Command[Any]:
    _records(h)
    return h.commands.configure(
        limits=OPTIONS, fail_handler=True, failed_limit=2, broken_limit=1, paused=True
    )


@scenario
def configure_resumes(h: Harness) -> Command[Any]:
    with_waiters(h)
    h.call(h.commands.configure(paused=True))
    return h.commands.configure(paused=False)


@scenario
def requeue_of_the_failed(h: Harness) -> Command[Any]:
    _records(h)
    with_waiters(h)
    h.dispatch("a")
    return h.commands.requeue("failed", ["a", "b", "d", "nobody"])


@scenario
def requeue_of_the_broken(h: Harness) -> Command[Any]:
    _records(h)
    return h.commands.requeue("broken", ["e", "f"])


@scenario
def drop_of_records(h: Harness) -> Command[Any]:
    _records(h)
    return h.commands.drop("failed", ["a", "d", "nobody"])


@scenario
def trim_of_records(h: Harness) -> Command[Any]:
    _records(h)
    return h.commands.trim("failed", 1)
