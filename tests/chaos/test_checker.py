"""The checker: a true history accuses nobody, and each of these lies is seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.chaos.checker import PROMISES, Aftermath, check
from tests.chaos.history import (
    Alive,
    Cancelled,
    Cancelling,
    Dispatched,
    Dispatching,
    Ended,
    Event,
    Fault,
    GaveUp,
    Requeued,
    Settled,
    Started,
)

Q = "work"
Events = list[Event]


def asked(n: int, at: float, id_: str = "", does: str = "done", *, word: str = "created",
          due: float = 0.0, updates: bool = True) -> Events:  # fmt: skip
    return [
        Dispatching(at, n, Q, id_ or f"j{n}", does, due, updates),
        Dispatched(at + 0.01, n, word),
    ]


def ran(n: int, start: float, end: float, *, id_: str = "", token: int, how: str = "done",
        word: str | None = "finished", after: float = 0.0, pid: int = 1,
        until: float = 0.0) -> Events:  # fmt: skip
    id_ = id_ or f"j{n}"
    story: Events = [Started(start, Q, id_, n, token, pid, until)]
    story.append(Ended(end, Q, id_, token, how, after))
    if word:
        story.append(Settled(Q, id_, token, word, end + 0.001))
    return story


def cancelled(c: str, id_: str, at: float, word: str, *, running: bool = False) -> Events:
    return [Cancelling(at, c, Q, id_, running), Cancelled(at + 0.01, c, word)]


def true_story() -> Events:
    """One of everything that may happen."""
    return [
        *asked(1, 1.0), *ran(1, 1.1, 1.2, token=1),
        # Scheduled, and retried twice, the second time later.
        *asked(2, 1.0, does="raise:2", due=3.0),
        *ran(2, 3.0, 3.1, token=2, how="raised", word="retried", after=0.1),
        *ran(2, 3.3, 3.4, token=3, how="raised", word="retried", after=0.2),
        *ran(2, 3.7, 3.8, token=4),
        # Given up, and seen to.
        *asked(3, 1.0, does="permanent"), *ran(3, 1.1, 1.2, token=5, how="failure", word="failed"),
        GaveUp(1.3, Q, "j3", 3, 5, "permanent"),
        # The same, and brought back, to be given up again, or to be done.
        *asked(23, 1.0, does="permanent"),
        *ran(23, 1.1, 1.2, token=20, how="failure", word="failed"),
        GaveUp(1.3, Q, "j23", 23, 20, "permanent"), Requeued(2.0, Q, "j23", 23, "yes"),
        *ran(23, 2.1, 2.2, token=21, how="failure", word="failed"),
        GaveUp(2.3, Q, "j23", 23, 21, "permanent"),
        *asked(24, 1.0, does="raise:9"),
        *ran(24, 1.1, 1.2, token=22, how="failure", word="failed"),
        GaveUp(1.3, Q, "j24", 24, 22, "permanent"), Requeued(2.0, Q, "j24", 24, "yes"),
        *ran(24, 2.1, 2.2, token=23),
        # Killed in the middle, and run again.
        *asked(4, 1.0), Started(1.1, Q, "j4", 4, 6, 11), Alive(1.3, Q, "j4", 6),
        Fault(1.35, "kill child", (11,)), *ran(4, 1.4, 1.5, token=7),
        # An id dispatched again: while it waits, while it runs, and without its data.
        *asked(5, 1.0, "hot"), *asked(6, 1.5, "hot", word="updated"),
        *ran(6, 2.0, 2.5, id_="hot", token=8), *asked(7, 2.1, "hot", word="blocked"),
        *ran(7, 2.6, 2.7, id_="hot", token=9),
        *asked(8, 3.0, "hot"), *asked(9, 3.1, "hot", word="updated", updates=False),
        *ran(8, 3.2, 3.3, id_="hot", token=10),
        # Held behind a run, and replaced there: by one that was told so, and by one that died.
        *asked(17, 1.0, "warm"), *asked(18, 1.2, "warm", word="blocked"),
        *ran(17, 1.1, 1.5, id_="warm", token=17), *asked(19, 1.3, "warm", word="blocked"),
        Dispatching(1.4, 20, Q, "warm", "done"), *asked(21, 2.0, "warm"),
        *ran(21, 2.1, 2.2, id_="warm", token=18),
        # Cancelled while it waits, and while it runs; refused; unclear, and it ran.
        *asked(10, 1.0, due=9.0), *cancelled("c1", "j10", 1.5, "yes"),
        *asked(11, 1.0), Started(1.1, Q, "j11", 11, 11, 1),
        *cancelled("c2", "j11", 1.15, "yes", running=True), Ended(1.2, Q, "j11", 11, "cancelled"),
        *asked(12, 1.0, word="refused"), *asked(13, 1.0, does="permanent", word="unclear"),
        Dispatching(1, 14, Q, "j14", "done"), *ran(14, 1.1, 1.2, token=12),
        # Timed out, and retried after a pause.
        *asked(25, 1.0, does="hang"),
        *ran(25, 1.1, 3.1, token=24, how="cancelled", word="timed_out"),
        *ran(25, 3.3, 3.4, token=25),
        # A pull consumer that was too slow, and a worker that was stopped, and woken.
        *asked(15, 1.0), Started(1.1, Q, "j15", 15, 13, 2, 2.0), *ran(15, 2.0, 2.1, token=14),
        Ended(5.0, Q, "j15", 13, "done"),
        *asked(16, 1.0), Started(1.1, Q, "j16", 16, 15, 33), *ran(16, 15.0, 16.0, token=16),
        Alive(20.1, Q, "j16", 15), Fault(1.2, "freeze worker", (33,), 20.0),
    ]  # fmt: skip


END = Aftermath(given_up=[3, 23])


def test_a_true_history_accuses_nobody() -> None:
    verdict = check(true_story(), END)
    assert verdict.kept, verdict.broken
    assert [round(seconds, 3) for seconds in verdict.woken] == [0.1]


def without(story: Events, kind: type[Any], **fields: Any) -> Events:
    left = [e for e in story if not (isinstance(e, kind) and _matches(e, fields))]
    assert len(left) < len(story)
    return left


def changed(story: Events, kind: type[Any], where: dict[str, Any], **to: Any) -> Events:
    found = [e for e in story if isinstance(e, kind) and _matches(e, where)]
    assert len(found) == 1
    return [msgspec.structs.replace(e, **to) if e is found[0] else e for e in story]


def _matches(event: Any, fields: dict[str, Any]) -> bool:
    return all(getattr(event, name) == value for name, value in fields.items())


def never_ran(story: Events, token: int, id_: str) -> Events:
    return [e for e in story if (getattr(e, "token", None), getattr(e, "id", None)) != (token, id_)]


LIES: dict[str, tuple[str, Callable[[Events], Events]]] = {
    "a job that never ran": ("lost", lambda s: never_ran(s, 1, "j1")),
    "a scheduled job that never ran": (
        "lost", lambda s: never_ran(never_ran(never_ran(s, 2, "j2"), 3, "j2"), 4, "j2")),
    "a killed job that did not come back": ("lost", lambda s: never_ran(s, 7, "j4")),
    "a retried job that did not come back": (
        "lost", lambda s: never_ran(never_ran(s, 3, "j2"), 4, "j2")),
    "a job that was brought back and did not come": ("lost", lambda s: never_ran(s, 23, "j24")),
    "an update that was lost": ("stale", lambda s: changed(s, Started, {"token": 8}, n=5)),
    "a dispatch held behind a run that was lost": ("lost", lambda s: never_ran(s, 9, "hot")),
    "a held dispatch that was dropped, as the next one found": (
        "lost", lambda s: without(s, Dispatching, n=20)),
    "a held dispatch that was dropped, and others held much later": ("lost", lambda s: [
        *without(s, Dispatching, n=20), *asked(22, 9.0, "warm", word="updated"),
        *ran(22, 9.1, 9.2, id_="warm", token=19)]),
    "a held dispatch that was dropped, long after a call that was not answered": (
        "lost", lambda s: changed(s, Dispatching, {"n": 20}, at=-60.0)),
    "a held dispatch that was dropped, before a call that was not answered": (
        "lost", lambda s: changed(s, Dispatching, {"n": 20}, at=2.5)),
    "a job replaced by one that did not replace it": ("lost", lambda s: changed(
        changed(s, Started, {"token": 10}, n=9), Dispatched, {"n": 9}, word="unchanged")),
    "a cancel that was answered with no": (
        "lost", lambda s: changed(s, Cancelled, {"c": "c1"}, word="no")),
    "a cancel before the dispatch": ("lost", lambda s: changed(
        changed(s, Cancelling, {"c": "c1"}, at=0.1), Cancelled, {"c": "c1"}, at=0.2)),
    "an overlap of one millisecond": (
        "overlap", lambda s: changed(s, Started, {"token": 9}, at=2.499)),
    "an overlap with a run that was killed": (
        "overlap", lambda s: changed(s, Started, {"token": 7}, at=1.299)),
    "a stopped worker that goes on when it is woken": (
        "overlap", lambda s: [*s, Alive(21.5, Q, "j16", 15)]),
    "an overlap with a worker stopped only later": ("overlap", lambda s: changed(
        s, Fault, {"kind": "freeze worker"}, at=15.5)),
    "an overlap with a worker stopped for less than a lease": (
        "overlap", lambda s: changed(s, Fault, {"kind": "freeze worker"}, at=6.0)),
    "an overlap with a pull consumer, stopped or not": ("overlap", lambda s: [
        *changed(s, Started, {"token": 14}, at=1.99), Fault(-20.0, "freeze consumer", (2,), 5.0)]),
    "a worker stopped for a moment that starts what another has ended": ("token", lambda s: [
        *s, *ran(1, 1.5, 1.6, token=0, word=None, pid=44),
        Fault(1.3, "freeze child", (44,), 1.49)]),
    "a second lease within the first of a pull consumer": (
        "overlap", lambda s: changed(s, Started, {"token": 14}, at=1.99)),
    "a scheduled job that came early": (
        "early", lambda s: changed(s, Started, {"token": 2}, at=2.99)),
    "a retry that came early": ("early", lambda s: changed(s, Started, {"token": 4}, at=3.55)),
    "a retry that came early after a timeout": (
        "early", lambda s: changed(s, Started, {"token": 25}, at=3.19)),
    "a run after its finish": ("rerun", lambda s: [*s, *ran(1, 1.5, 1.6, token=99)]),
    "a fail handler that did not run": ("unheard", lambda s: without(s, GaveUp, n=3)),
    "a run after its cancel": ("undead", lambda s: [*s, *ran(10, 9.0, 9.1, token=99)]),
    "a second run after the cancel of the first": ("undead", lambda s: [
        *s, *ran(11, 1.3, 1.4, token=97, word=None), *ran(11, 1.5, 1.6, token=98, word=None)]),
    "a token that did not grow": ("token", lambda s: [
        msgspec.structs.replace(e, token=3.5) if getattr(e, "token", 0) == 7 else e for e in s]),
    "a payload that nobody dispatched": (
        "stranger", lambda s: [*s, *ran(77, 1.5, 1.6, id_="j1", token=99)]),
    "a payload of another job": ("stranger", lambda s: changed(s, Started, {"token": 16}, n=4)),
    "a finish of a run that was killed": (
        "unearned", lambda s: [*s, Settled(Q, "j4", 6, "finished", 1.4)]),
    "a finish of a run that raised": (
        "unearned", lambda s: changed(s, Settled, {"token": 3}, word="finished")),
    "a job given up that never fails": (
        "unearned", lambda s: [*s, GaveUp(3.0, Q, "j4", 4, 7, "stall")]),
    "a run that is given up and never fails": (
        "unearned", lambda s: changed(s, Settled, {"token": 24}, word="failed")),
    "a cancel that nobody asked for": (
        "unearned", lambda s: changed(s, Settled, {"token": 24}, word="cancelled")),
    "a run that does not end": ("overlong", lambda s: [
        *never_ran(s, 25, "j25"), Alive(40.0, Q, "j25", 24)]),
    "a job that had been refused": ("stranger", lambda s: [*s, *ran(12, 1.5, 1.6, token=99)]),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_it_sees(lie: str) -> None:
    promise, tell = LIES[lie]
    verdict = check(tell(true_story()), END)
    assert verdict.broken[promise], verdict.broken


@pytest.mark.parametrize(
    ("promise", "aftermath"),
    [
        ("unheard", replace(END, given_up=[3, 23, 13])),
        ("wedged", replace(END, remaining=["work: active j1"])),
        ("inconsistent", replace(END, audit=["work: j1 is in two states"])),
        ("left behind", replace(END, processes=["worker 1 ended with 1"])),
    ],
)
def test_it_sees_what_is_left(promise: str, aftermath: Aftermath) -> None:
    verdict = check(true_story(), aftermath)
    assert [name for name in PROMISES if verdict.broken[name]] == [promise]


def test_what_the_settings_let_a_server_forget_is_forgiven_then_and_only_then() -> None:
    lost = never_ran(true_story(), 1, "j1")
    forgiven = check(lost, replace(END, forgiven=[(1.0, 1.1)]))
    assert forgiven.kept
    assert forgiven.forgiven == 1
    assert check(lost, replace(END, forgiven=[(1.02, 1.1)])).broken["lost"]


def test_a_call_that_was_held_up_may_have_come_later() -> None:
    long_before = changed(true_story(), Dispatching, {"n": 20}, at=-60.0)
    assert check(long_before, END).broken["lost"]
    assert check([*long_before, Fault(-58.0, "freeze producer", (9,), 1.0)], END).kept
