"""The checker finds nothing in a correct history, and each defect in a false one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.chaos.checker import PROMISES, FinalState, check
from tests.chaos.history import (
    Cancelled,
    Cancelling,
    Dispatched,
    Dispatching,
    Ended,
    Event,
    FailHandlerRan,
    Fault,
    Requeued,
    Settled,
    Started,
    StillRunning,
)

Q = "work"
Events = list[Event]


def dispatched(n: int, at: float, id_: str = "", behaviour: str = "done", *,
               answer: str = "created", due: float = 0.0,
               updates: bool = True) -> Events:  # fmt: skip
    return [
        Dispatching(at, n, Q, id_ or f"j{n}", behaviour, due, updates),
        Dispatched(at + 0.01, n, answer),
    ]


def ran(n: int, start: float, end: float, *, id_: str = "", token: int, how: str = "done",
        outcome: str | None = "finished", after: float = 0.0, pid: int = 1,
        until: float = 0.0) -> Events:  # fmt: skip
    id_ = id_ or f"j{n}"
    events: Events = [Started(start, Q, id_, n, token, pid, until)]
    events.append(Ended(end, Q, id_, token, how, after))
    if outcome:
        events.append(Settled(Q, id_, token, outcome, end + 0.001))
    return events


def cancelled(c: str, id_: str, at: float, answer: str, *, running: bool = False) -> Events:
    return [Cancelling(at, c, Q, id_, running), Cancelled(at + 0.01, c, answer)]


def correct_history() -> Events:
    """One example of everything that may happen."""
    return [
        *dispatched(1, 1.0), *ran(1, 1.1, 1.2, token=1),
        # Scheduled, and retried twice, the second time with a longer delay.
        *dispatched(2, 1.0, behaviour="raise:2", due=3.0),
        *ran(2, 3.0, 3.1, token=2, how="raised", outcome="retried", after=0.1),
        *ran(2, 3.3, 3.4, token=3, how="raised", outcome="retried", after=0.2),
        *ran(2, 3.7, 3.8, token=4),
        # Failed, and its fail handler ran.
        *dispatched(3, 1.0, behaviour="permanent"),
        *ran(3, 1.1, 1.2, token=5, how="failure", outcome="failed"),
        FailHandlerRan(1.3, Q, "j3", 3, 5, "permanent"),
        # The same, and requeued: one fails again, one finishes.
        *dispatched(23, 1.0, behaviour="permanent"),
        *ran(23, 1.1, 1.2, token=20, how="failure", outcome="failed"),
        FailHandlerRan(1.3, Q, "j23", 23, 20, "permanent"), Requeued(2.0, Q, "j23", 23, "yes"),
        *ran(23, 2.1, 2.2, token=21, how="failure", outcome="failed"),
        FailHandlerRan(2.3, Q, "j23", 23, 21, "permanent"),
        *dispatched(24, 1.0, behaviour="raise:9"),
        *ran(24, 1.1, 1.2, token=22, how="failure", outcome="failed"),
        FailHandlerRan(1.3, Q, "j24", 24, 22, "permanent"), Requeued(2.0, Q, "j24", 24, "yes"),
        *ran(24, 2.1, 2.2, token=23),
        # Killed during the run, and run again.
        *dispatched(4, 1.0), Started(1.1, Q, "j4", 4, 6, 11), StillRunning(1.3, Q, "j4", 6),
        Fault(1.35, "kill worker process", (11,)), *ran(4, 1.4, 1.5, token=7),
        # An id dispatched again: while waiting, while running, and without updating its data.
        *dispatched(5, 1.0, "hot"), *dispatched(6, 1.5, "hot", answer="updated"),
        *ran(6, 2.0, 2.5, id_="hot", token=8), *dispatched(7, 2.1, "hot", answer="blocked"),
        *ran(7, 2.6, 2.7, id_="hot", token=9),
        *dispatched(8, 3.0, "hot"), *dispatched(9, 3.1, "hot", answer="updated", updates=False),
        *ran(8, 3.2, 3.3, id_="hot", token=10),
        # Blocked by a run, and replaced there: by a dispatch that was answered, and by one that
        # was not because its producer died.
        *dispatched(17, 1.0, "warm"), *dispatched(18, 1.2, "warm", answer="blocked"),
        *ran(17, 1.1, 1.5, id_="warm", token=17), *dispatched(19, 1.3, "warm", answer="blocked"),
        Dispatching(1.4, 20, Q, "warm", "done"), *dispatched(21, 2.0, "warm"),
        *ran(21, 2.1, 2.2, id_="warm", token=18),
        # Cancelled while waiting, and while running; refused; unclear, but it ran.
        *dispatched(10, 1.0, due=9.0), *cancelled("c1", "j10", 1.5, "yes"),
        *dispatched(11, 1.0), Started(1.1, Q, "j11", 11, 11, 1),
        *cancelled("c2", "j11", 1.15, "yes", running=True), Ended(1.2, Q, "j11", 11, "cancelled"),
        *dispatched(12, 1.0, answer="refused"),
        *dispatched(13, 1.0, behaviour="permanent", answer="unclear"),
        Dispatching(1, 14, Q, "j14", "done"), *ran(14, 1.1, 1.2, token=12),
        # Timed out, and retried after a delay.
        *dispatched(25, 1.0, behaviour="hang"),
        *ran(25, 1.1, 3.1, token=24, how="cancelled", outcome="timed_out"),
        *ran(25, 3.3, 3.4, token=25),
        # A pull consumer that was too slow, and a worker that was frozen and thawed.
        *dispatched(15, 1.0), Started(1.1, Q, "j15", 15, 13, 2, 2.0), *ran(15, 2.0, 2.1, token=14),
        Ended(5.0, Q, "j15", 13, "done"),
        *dispatched(16, 1.0), Started(1.1, Q, "j16", 16, 15, 33), *ran(16, 15.0, 16.0, token=16),
        StillRunning(20.1, Q, "j16", 15), Fault(1.2, "freeze supervisor and workers", (33,), 20.0),
    ]  # fmt: skip


END = FinalState(failed=[3, 23])


def test_correct_history_has_no_violation() -> None:
    verdict = check(correct_history(), END)
    assert verdict.kept, verdict.violations
    assert [round(seconds, 3) for seconds in verdict.resumed] == [0.1]


def without(events: Events, kind: type[Any], **fields: Any) -> Events:
    left = [e for e in events if not (isinstance(e, kind) and _matches(e, fields))]
    assert len(left) < len(events)
    return left


def changed(events: Events, kind: type[Any], where: dict[str, Any], **to: Any) -> Events:
    found = [e for e in events if isinstance(e, kind) and _matches(e, where)]
    assert len(found) == 1
    return [msgspec.structs.replace(e, **to) if e is found[0] else e for e in events]


def _matches(event: Any, fields: dict[str, Any]) -> bool:
    return all(getattr(event, name) == value for name, value in fields.items())


def never_ran(events: Events, token: int, id_: str) -> Events:
    return [
        e for e in events if (getattr(e, "token", None), getattr(e, "id", None)) != (token, id_)
    ]


# Each defect: the promise that it breaks, and how to put it into the correct history.
FALSE_HISTORIES: dict[str, tuple[str, Callable[[Events], Events]]] = {
    "a job that never ran": ("lost", lambda s: never_ran(s, 1, "j1")),
    "a scheduled job that never ran": (
        "lost", lambda s: never_ran(never_ran(never_ran(s, 2, "j2"), 3, "j2"), 4, "j2")),
    "a killed job that did not run again": ("lost", lambda s: never_ran(s, 7, "j4")),
    "a retried job that did not run again": (
        "lost", lambda s: never_ran(never_ran(s, 3, "j2"), 4, "j2")),
    "a requeued job that did not run": ("lost", lambda s: never_ran(s, 23, "j24")),
    "an update that was lost": ("stale data", lambda s: changed(s, Started, {"token": 8}, n=5)),
    "a blocked dispatch that was lost": ("lost", lambda s: never_ran(s, 9, "hot")),
    "a blocked dispatch dropped, as the answer to the next one shows": (
        "lost", lambda s: without(s, Dispatching, n=20)),
    "a blocked dispatch dropped, and another blocked much later": ("lost", lambda s: [
        *without(s, Dispatching, n=20), *dispatched(22, 9.0, "warm", answer="updated"),
        *ran(22, 9.1, 9.2, id_="warm", token=19)]),
    "a blocked dispatch dropped long after an unanswered call": (
        "lost", lambda s: changed(s, Dispatching, {"n": 20}, at=-60.0)),
    "a blocked dispatch dropped before an unanswered call": (
        "lost", lambda s: changed(s, Dispatching, {"n": 20}, at=2.5)),
    "a job missing after a dispatch that did not replace it": ("lost", lambda s: changed(
        changed(s, Started, {"token": 10}, n=9), Dispatched, {"n": 9}, answer="unchanged")),
    "a cancel that was answered with no": (
        "lost", lambda s: changed(s, Cancelled, {"call": "c1"}, answer="no")),
    "a cancel before the dispatch": ("lost", lambda s: changed(
        changed(s, Cancelling, {"call": "c1"}, at=0.1), Cancelled, {"call": "c1"}, at=0.2)),
    "an overlap of one millisecond": (
        "overlap", lambda s: changed(s, Started, {"token": 9}, at=2.499)),
    "an overlap with a run that was killed": (
        "overlap", lambda s: changed(s, Started, {"token": 7}, at=1.299)),
    "a frozen worker that continues after it is thawed": (
        "overlap", lambda s: [*s, StillRunning(21.5, Q, "j16", 15)]),
    "an overlap with a worker frozen only later": ("overlap", lambda s: changed(
        s, Fault, {"kind": "freeze supervisor and workers"}, at=15.5)),
    "an overlap with a worker frozen for less than a lease": (
        "overlap", lambda s: changed(s, Fault, {"kind": "freeze supervisor and workers"}, at=6.0)),
    "an overlap with a frozen pull consumer": ("overlap", lambda s: [
        *changed(s, Started, {"token": 14}, at=1.99), Fault(-20.0, "freeze consumer", (2,), 5.0)]),
    "a worker frozen for a moment that starts a finished job": ("token", lambda s: [
        *s, *ran(1, 1.5, 1.6, token=0, outcome=None, pid=44),
        Fault(1.3, "freeze worker process", (44,), 1.49)]),
    "a second lease before the first of a pull consumer expired": (
        "overlap", lambda s: changed(s, Started, {"token": 14}, at=1.99)),
    "a scheduled job that started early": (
        "early", lambda s: changed(s, Started, {"token": 2}, at=2.99)),
    "a retry that started early": ("early", lambda s: changed(s, Started, {"token": 4}, at=3.55)),
    "a retry after a timeout that started early": (
        "early", lambda s: changed(s, Started, {"token": 25}, at=3.19)),
    "a run after its finish": ("repeated", lambda s: [*s, *ran(1, 1.5, 1.6, token=99)]),
    "a fail handler that did not run": (
        "no fail handler", lambda s: without(s, FailHandlerRan, n=3)),
    "a run after its cancel": ("cancelled", lambda s: [*s, *ran(10, 9.0, 9.1, token=99)]),
    "a second run after the cancel of the first": ("cancelled", lambda s: [
        *s, *ran(11, 1.3, 1.4, token=97, outcome=None),
        *ran(11, 1.5, 1.6, token=98, outcome=None)]),
    "a token that did not increase": ("token", lambda s: [
        msgspec.structs.replace(e, token=3.5) if getattr(e, "token", 0) == 7 else e for e in s]),
    "a payload that was never dispatched": (
        "unknown payload", lambda s: [*s, *ran(77, 1.5, 1.6, id_="j1", token=99)]),
    "a payload of another job": (
        "unknown payload", lambda s: changed(s, Started, {"token": 16}, n=4)),
    "a finish of a run that was killed": (
        "wrong outcome", lambda s: [*s, Settled(Q, "j4", 6, "finished", 1.4)]),
    "a finish of a run that raised": (
        "wrong outcome", lambda s: changed(s, Settled, {"token": 3}, outcome="finished")),
    "a fail handler of a job that cannot fail": (
        "wrong outcome", lambda s: [*s, FailHandlerRan(3.0, Q, "j4", 4, 7, "stall")]),
    "a failed outcome of a job that cannot fail": (
        "wrong outcome", lambda s: changed(s, Settled, {"token": 24}, outcome="failed")),
    "a cancel that was never requested": (
        "wrong outcome", lambda s: changed(s, Settled, {"token": 24}, outcome="cancelled")),
    "a run that does not end": ("overlong", lambda s: [
        *never_ran(s, 25, "j25"), StillRunning(40.0, Q, "j25", 24)]),
    "a run of a refused dispatch": (
        "unknown payload", lambda s: [*s, *ran(12, 1.5, 1.6, token=99)]),
}  # fmt: skip


@pytest.mark.parametrize("defect", FALSE_HISTORIES)
def test_checker_reports_a_defect_of_the_history(defect: str) -> None:
    promise, falsify = FALSE_HISTORIES[defect]
    verdict = check(falsify(correct_history()), END)
    assert verdict.violations[promise], verdict.violations


@pytest.mark.parametrize(
    ("promise", "final"),
    [
        ("no fail handler", msgspec.structs.replace(END, failed=[3, 23, 13])),
        ("stuck", msgspec.structs.replace(END, remaining=["work: active j1"])),
        ("audit", msgspec.structs.replace(END, audit=["work: j1 is in two states"])),
        ("processes", msgspec.structs.replace(END, processes=["worker 1 exited with 1"])),
    ],
)
def test_checker_reports_a_defect_of_the_final_state(promise: str, final: FinalState) -> None:
    verdict = check(correct_history(), final)
    assert [name for name in PROMISES if verdict.violations[name]] == [promise]


def test_loss_is_excused_only_within_the_interval_that_the_server_settings_allow() -> None:
    lost = never_ran(correct_history(), 1, "j1")
    excused = check(lost, msgspec.structs.replace(END, excused=[(1.0, 1.1)]))
    assert excused.kept
    assert excused.excused == 1
    assert check(lost, msgspec.structs.replace(END, excused=[(1.02, 1.1)])).violations["lost"]


def test_call_delayed_by_a_freeze_may_have_been_executed_later() -> None:
    long_before = changed(correct_history(), Dispatching, {"n": 20}, at=-60.0)
    assert check(long_before, END).violations["lost"]
    assert check([*long_before, Fault(-58.0, "freeze producer", (9,), 1.0)], END).kept
