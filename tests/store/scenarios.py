"""Scenarios for faults: one call of every function in every interesting state.

A scenario brings a queue into its state and returns the command in which commands fail."""

from collections.abc import Callable
from functools import partial
from typing import Any

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Cancel, Fail, Finish, Outcome, Release, RetryLater, TimedOut
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.records import DispatchItem, Ending, pack_options
from tests.store.harness import Harness, endings_of

Scenario = Callable[[Harness], Command[Any]]
SCENARIOS: dict[str, Scenario] = {}

WHY = JobError(type="Boom", message="it broke")
OPTIONS = JobOptions(max_retries=5, timeout=7)
WIRE_OPTIONS = pack_options(OPTIONS, update=True)


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def with_waiters(h: Harness) -> None:
    h.join("s1", "s2")
    for client in ("s1", "s2"):
        h.dequeue(client, waiter=client, waits=True)


def busy(h: Harness) -> list[Job]:
    """c1 runs a (for which a dispatch is held), b and c; d waits, e is scheduled."""
    h.join("c1", "c2")
    h.dispatch("a", options=OPTIONS)
    h.dispatch_many("b", "c")
    jobs = h.take("c1", limit=3, request="r0")
    h.dispatch("a", b"held", after=60, options=JobOptions(max_stalls=1))
    h.dispatch("d")
    h.dispatch("e", after=60, options=OPTIONS)
    h.later(1)
    return jobs


def _item(id_: str, when: str = "", flags: str = "", options: bytes = b"") -> DispatchItem:
    return DispatchItem(id_, b"new", when, flags, options)


# dispatch


@scenario
def dispatch_creates_many(h: Harness) -> Command[Any]:
    """Enough jobs to force `waiting`, `data` and `info` out of the listpack encoding."""
    with_waiters(h)
    busy(h)
    later = [_item(f"later{number}", "+60000") for number in range(17)]
    return h.commands.dispatch([*(_item(f"m{number}") for number in range(3)), *later, _item("a")])


@scenario
def dispatch_creates(h: Harness) -> Command[Any]:
    with_waiters(h)
    return h.commands.dispatch([_item("a")])


@scenario
def dispatch_creates_at_the_time_of_the_server(h: Harness) -> Command[Any]:
    return QueueCommands(h.keys).dispatch([_item("a"), _item("b", "+1000")])


@scenario
def dispatch_schedules(h: Harness) -> Command[Any]:
    with_waiters(h)
    return h.commands.dispatch([_item("a", "+5000", "", WIRE_OPTIONS)])


@scenario
def dispatch_updates(h: Harness) -> Command[Any]:
    h.dispatch("a", after=60, options=JobOptions(max_retries=1))
    return h.commands.dispatch([_item("a", "+5000", "1t10", WIRE_OPTIONS)])


@scenario
def dispatch_of_a_new_caller(h: Harness) -> Command[Any]:
    return h.commands.dispatch([_item("a"), _item("b")]).with_number("p", 1)


@scenario
def dispatch_of_a_caller_forgets_callers_that_are_gone(h: Harness) -> Command[Any]:
    for caller in ("p", "q", "r"):
        h.call(h.commands.dispatch([_item("a")]).with_number(caller, 1))
    h.later(1000)
    return h.commands.dispatch([_item("a"), _item("b")]).with_number("p", 2)


@scenario
def dispatch_is_repeated(h: Harness) -> Command[Any]:
    command = h.commands.dispatch([_item("a"), _item("b")]).with_number("p", 1)
    h.call(command)
    return command


@scenario
def cancel_of_a_caller(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.cancel(["a", "d", "e", "x"], running=True).with_number("p", 1)


@scenario
def requeue_of_a_caller(h: Harness) -> Command[Any]:
    h.dispatch_many("a", "b")
    h.call(h.commands.settle(endings_of(h.take(limit=2), Fail(WHY))))
    return h.commands.requeue("failed", ["a", "b", "x"]).with_number("p", 1)


@scenario
def dispatch_changes_nothing(h: Harness) -> Command[Any]:
    h.dispatch("a", after=60)
    return h.commands.dispatch([_item("a", "", "0f00"), _item("a", "", "1t11")])


@scenario
def run_now_of_a_scheduled_job(h: Harness) -> Command[Any]:
    busy(h)
    with_waiters(h)
    return h.commands.run_now("e").with_number("p", 1)


@scenario
def dispatch_is_held(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.dispatch([_item("b", "+5000", "", WIRE_OPTIONS)])


@scenario
def dispatch_merges(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.dispatch([_item("a", "+5000", "1l00", WIRE_OPTIONS)])


@scenario
def dispatch_of_all_kinds_in_one_batch(h: Harness) -> Command[Any]:
    busy(h)
    with_waiters(h)
    plain = [_item(id_) for id_ in ("new", "d", "e", "a", "b", "new")]
    return h.commands.dispatch([*plain, _item("a", "+10", "1e00", WIRE_OPTIONS), _item("e")])


@scenario
def dispatch_of_a_full_call(h: Harness) -> Command[Any]:
    ids = [f"j{n}" for n in range(1000)]
    h.dispatch_many(*ids[::200])
    return h.commands.dispatch([_item(id_, "+1000") for id_ in ids])


# cancel


@scenario
def cancel_of_waiting_jobs(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.cancel(["d", "e", "nobody"])


@scenario
def cancel_of_a_held_dispatch(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.cancel(["a"])


@scenario
def cancel_of_everything_running_or_not(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.cancel(["a", "b", "d", "e"], running=True)


@scenario
def cancel_of_a_full_call(h: Harness) -> Command[Any]:
    ids = [f"j{n}" for n in range(1000)]
    h.dispatch_many(*ids)
    return h.commands.cancel(ids)


# dequeue


@scenario
def dequeue_takes(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.dequeue("c2", lease=30, limit=5, request="r1")


@scenario
def dequeue_takes_many_and_finishes_many(h: Harness) -> Command[Any]:
    """Enough jobs to force `leases` out of the listpack encoding."""
    jobs = busy(h)
    h.dispatch_many(*(f"m{number:02}" for number in range(40)))
    jobs += h.take("c2", limit=17)
    h.cancel("b", running=True)
    endings = [*endings_of(jobs[1:], Finish()), *endings_of(jobs[:1], RetryLater(WHY))]
    return h.commands.dequeue("c2", lease=30, limit=17, request="r1", endings=endings)


@scenario
def dequeue_takes_at_the_time_of_the_server(h: Harness) -> Command[Any]:
    commands = QueueCommands(h.keys)
    h.call(commands.register("c2", 30))
    h.call(commands.dispatch([_item("a"), _item("b", "", "", WIRE_OPTIONS)]))
    return commands.dequeue("c2", lease=30, limit=5, request="r1")


@scenario
def dequeue_for_one_lease(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.dequeue("~x", lease=30, limit=1)


@scenario
def dequeue_for_one_lease_again(h: Harness) -> Command[Any]:
    h.dispatch_many("a", "b")
    h.take("~x")
    return h.commands.dequeue("~x", lease=30, limit=1)


@scenario
def dequeue_repeats(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.dequeue("c1", lease=30, limit=3, request="r0")


@scenario
def dequeue_finds_nothing_and_waits(h: Harness) -> Command[Any]:
    h.join("c1")
    h.dispatch(after=60)
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1", waiter="c1", waits=True)


@scenario
def dequeue_no_longer_waits(h: Harness) -> Command[Any]:
    with_waiters(h)
    return h.commands.dequeue("s1", lease=30, limit=5, waiter="s1", waits=False)


@scenario
def dequeue_of_a_paused_queue(h: Harness) -> Command[Any]:
    jobs = busy(h)
    h.call(h.commands.configure(paused=True))
    return h.commands.dequeue("c1", lease=30, limit=5, endings=endings_of(jobs, RetryLater(WHY)))


@scenario
def dequeue_ends_leases_first(h: Harness) -> Command[Any]:
    jobs = busy(h)
    with_waiters(h)
    ends: list[Outcome] = [RetryLater(WHY, after=0), Fail(WHY), Finish()]
    endings = [Ending(job.id, job.token, end) for job, end in zip(jobs, ends, strict=True)]
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1", endings=endings)


@scenario
def dequeue_ends_sweeps_and_takes(h: Harness) -> Command[Any]:
    h.call(h.commands.configure(fail_handler=True))
    jobs = busy(h)
    h.dispatch("poison", options=JobOptions(max_stalls=1))
    h.join("dead", lease=1)
    h.take("dead", limit=5, lease=1, request="r")
    h.later(2)
    return h.commands.dequeue(
        "c1", lease=30, limit=5, request="r1", endings=endings_of(jobs, Fail(WHY))
    )


@scenario
def dequeue_renews_a_late_client(h: Harness) -> Command[Any]:
    busy(h)
    h.join("late", lease=1)
    h.later(2)
    return h.commands.dequeue("late", lease=30, limit=1, request="r1")


def _suspects(h: Harness) -> None:
    """b waits before x and y, which are suspects, and c waits after them."""
    h.join("dead", "c1")
    h.dispatch("b")
    b = h.take_one("c1")
    h.dispatch_many("x", "y")
    crashed = h.take("dead", limit=2)
    h.dispatch("c")
    with_waiters(h)
    h.die(*crashed)
    h.end(b, Release())


@scenario
def dequeue_takes_the_jobs_around_suspects(h: Harness) -> Command[Any]:
    _suspects(h)
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1")


@scenario
def dequeue_takes_a_suspect_alone(h: Harness) -> Command[Any]:
    _suspects(h)
    h.take("c1")
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1")


@scenario
def dequeue_skips_suspects(h: Harness) -> Command[Any]:
    _suspects(h)
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1", beside=1)


@scenario
def dequeue_finds_only_suspects(h: Harness) -> Command[Any]:
    _suspects(h)
    h.take("c1", limit=5, beside=1)
    return h.commands.dequeue("c1", lease=30, limit=5, request="r1", waiter="c1", waits=8, beside=1)


# settle


def _settle(
    h: Harness, outcome: Outcome, held: bool, cancelled: bool, one_lease: bool
) -> Command[Any]:
    h.call(h.commands.configure(fail_handler=True, failed_limit=1, broken_limit=1))
    h.dispatch("older")
    h.end(h.take_one(), Fail(WHY))
    h.join("c1")
    h.dispatch("a", options=OPTIONS)
    h.dispatch("other")
    job = h.take_one("~x" if one_lease else "c1")
    if cancelled:
        h.cancel("a", running=True)
    if held:
        h.dispatch("a", b"held", after=60, options=JobOptions(max_stalls=1))
    h.later(1)
    return h.commands.settle([Ending("a", job.token, outcome), Ending("a", job.token, outcome)])


OUTCOMES: tuple[Outcome, ...] = (
    Finish(), Release(), Cancel(), RetryLater(WHY, after=3), TimedOut(), Fail(WHY), Broken(WHY),
)  # fmt: skip
for _outcome in OUTCOMES:
    _name = f"settle_{type(_outcome).__name__.lower()}"
    for _suffix, _flags in {
        "": (False, False, False),
        "_with_a_held_dispatch": (True, False, False),
        "_of_a_cancelled_run": (True, True, False),
        "_of_one_lease": (False, False, True),
    }.items():
        _held, _cancelled, _one = _flags
        SCENARIOS[_name + _suffix] = partial(
            _settle, outcome=_outcome, held=_held, cancelled=_cancelled, one_lease=_one
        )


@scenario
def settle_gives_up_for_the_second_time(h: Harness) -> Command[Any]:
    h.call(h.commands.configure(fail_handler=True, failed_limit=2))
    for _ in range(2):
        h.dispatch_many("a", "b")
        h.dispatch("c", options=JobOptions(max_retries=0))
        jobs = h.take(limit=3)
        h.later(1)
        command = h.commands.settle(endings_of(jobs, RetryLater(WHY, after=0))[2:])
        h.call(h.commands.settle(endings_of(jobs[:2], Fail(WHY))))
        if h.records("active") and len(h.records()) == 2:
            return command
    raise AssertionError("the scenario is not what it says")


@scenario
def settle_with_all_outcomes_at_once(h: Harness) -> Command[Any]:
    h.call(h.commands.configure(fail_handler=True))
    with_waiters(h)
    h.dispatch_many(*"abcdefg")
    jobs = h.take(limit=7)
    for job in jobs[::2]:
        h.dispatch(job.id, b"held", options=OPTIONS)
    h.later(1)
    pairs = zip(jobs, OUTCOMES, strict=True)
    return h.commands.settle([Ending(job.id, job.token, end) for job, end in pairs])


@scenario
def settle_of_plain_runs(h: Harness) -> Command[Any]:
    h.join("c1")
    h.dispatch_many(*"abcdef")
    jobs = h.take("c1", limit=5)
    h.cancel("b", running=True)
    h.dispatch("c", b"held")
    return h.commands.settle(endings_of([*jobs, jobs[0]], Finish()))


@scenario
def settle_of_leases_that_are_lost(h: Harness) -> Command[Any]:
    busy(h)
    return h.commands.settle([Ending("a", 999, Finish()), Ending("nobody", 1, Finish())])
