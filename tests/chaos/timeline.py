"""The events of a history, indexed by job, id, run and process."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.history import (
    Cancelled,
    Cancelling,
    Dispatched,
    Dispatching,
    Ended,
    Event,
    FailHandlerRan,
    Fault,
    Frozen,
    Requeued,
    Settled,
    Started,
    StillRunning,
)
from tests.chaos.workload import CALL_TIMEOUT

__all__ = ["Run", "Timeline"]

# The server may execute a call this many seconds after its caller timed out, or later if one of
# these faults delayed it.
IN_FLIGHT = 5.0
DELAYS_CALLS = (
    "freeze producer", "freeze server", "flap: server frozen", "stall network", "cut commands",
)  # fmt: skip

Key = tuple[str, str]
"""A queue and an id."""


@dataclass
class Run:
    """One run of a handler, or one pull lease."""

    start: Started
    end: Ended | None = None
    last: float = 0.0
    """The last time at which the run is known to have been running."""


class Timeline:
    """All events of a run of the chaos program."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.dispatches: dict[int, Dispatching] = {}
        self.answers: dict[int, Dispatched] = {}
        self.runs: dict[Key, list[Run]] = defaultdict(list)
        self.runs_of: dict[int, list[Run]] = defaultdict(list)
        self.by_id: dict[Key, list[Dispatching]] = defaultdict(list)
        self.settled: dict[tuple[str, str, int], Settled] = {}
        self.fail_handlers: dict[int, FailHandlerRan] = {}
        self.requeues: dict[int, list[Requeued]] = defaultdict(list)
        self.cancels: dict[Key, list[tuple[Cancelling, Cancelled | None]]] = defaultdict(list)
        self.freezes: dict[int, list[Fault]] = defaultdict(list)
        self.faults: list[Fault] = []
        self.frozen: list[Frozen] = []
        self._cancelling: dict[str, Cancelling] = {}
        self._cancelled: dict[str, Cancelled] = {}
        self._by_token: dict[tuple[str, str, int], Run] = {}
        self._progress: list[StillRunning | Ended] = []
        for event in events:
            self._add(event)
        self._link()

    def _add(self, event: Event) -> None:
        match event:
            case Dispatching():
                self.dispatches[event.n] = event
                self.by_id[event.queue, event.id].append(event)
            case Dispatched():
                self.answers[event.n] = event
            case Cancelling():
                self._cancelling[event.call] = event
            case Cancelled():
                self._cancelled[event.call] = event
            case Started():
                run = Run(event, last=event.at)
                self._by_token[event.queue, event.id, event.token] = run
                self.runs[event.queue, event.id].append(run)
            case StillRunning() | Ended():
                self._progress.append(event)
            case Settled():
                if event.outcome != "lost":
                    self.settled[event.queue, event.id, event.token] = event
            case FailHandlerRan():
                self.fail_handlers[event.n] = event
            case Requeued():
                self.requeues[event.n].append(event)
            case Frozen():
                self.frozen.append(event)
            case Fault():
                self.faults.append(event)
                if event.kind.startswith("freeze"):
                    for pid in event.pids:
                        self.freezes[pid].append(event)

    def _link(self) -> None:
        """Connect events that belong together but may come from different files."""
        for event in self._progress:
            run = self._by_token.get((event.queue, event.id, event.token))
            if run is not None:
                run.last = max(run.last, event.at)
                if isinstance(event, Ended):
                    run.end = event
        for runs in self.runs.values():
            runs.sort(key=lambda run: run.start.at)
            for run in runs:
                self.runs_of[run.start.n].append(run)
        for call, cancelling in self._cancelling.items():
            answered = (cancelling, self._cancelled.get(call))
            self.cancels[cancelling.queue, cancelling.id].append(answered)

    def answer(self, n: int) -> str:
        """The answer to a dispatch; `unclear` if its producer died before it came."""
        answer = self.answers.get(n)
        return "unclear" if answer is None else answer.answer

    def answered_at(self, n: int) -> float:
        answer = self.answers.get(n)
        return float("inf") if answer is None else answer.at

    def last_requeue(self, n: int) -> float:
        """The time of the last requeue that was answered with yes; 0 if there was none."""
        return max((one.at for one in self.requeues.get(n, ()) if one.answer == "yes"), default=0.0)

    def executed_by(self, requested: float, answer: Dispatched | Cancelled | None) -> float:
        """Until when the server may have executed a call: until its answer, if that was clear."""
        if answer is not None and answer.answer != "unclear":
            return answer.at
        timed_out = requested + CALL_TIMEOUT if answer is None else answer.at
        end = timed_out + IN_FLIGHT
        for fault in sorted(self.faults, key=lambda fault: fault.at):
            if fault.kind in DELAYS_CALLS and fault.at <= end and fault.until >= requested:
                end = max(end, fault.until + CALL_TIMEOUT + IN_FLIGHT)
        return end
