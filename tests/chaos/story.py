"""Events, sorted into what they are about: who asked for what, and which runs there were."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

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
from tests.chaos.load import CALL_TIMEOUT

__all__ = ["Run", "Story"]

# A call that its caller gave up may be on its way for so long after, or for as long as somebody
# who holds it is held up.
ON_ITS_WAY = 5.0
HOLDS_UP = ("freeze producer", "freeze server", "stall network", "harass")


@dataclass
class Run:
    """One run of a handler, or of a pull consumer."""

    start: Started
    end: Ended | None = None
    last: float = 0.0
    """When it was last known to be at it."""


class Story:
    """Events, sorted into what they are about."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.asked: dict[int, Dispatching] = {}
        self.answers: dict[int, Dispatched] = {}
        self.runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
        self.settled: dict[tuple[str, str, int], Settled] = {}
        self.given_up: dict[int, GaveUp] = {}
        self.requeued: dict[int, list[Requeued]] = defaultdict(list)
        self.freezes: dict[int, list[Fault]] = defaultdict(list)
        self.faults: list[Fault] = []
        self._cancelling: dict[str, Cancelling] = {}
        self._cancelled: dict[str, Cancelled] = {}
        by_token: dict[tuple[str, str, int], Run] = {}
        late: list[Alive | Ended] = []
        for event in events:
            match event:
                case Dispatching():
                    self.asked[event.n] = event
                case Dispatched():
                    self.answers[event.n] = event
                case Cancelling():
                    self._cancelling[event.c] = event
                case Cancelled():
                    self._cancelled[event.c] = event
                case Started():
                    run = Run(event, last=event.at)
                    by_token[event.queue, event.id, event.token] = run
                    self.runs[event.queue, event.id].append(run)
                case Alive() | Ended():
                    late.append(event)
                case Settled():
                    if event.word != "lost":
                        self.settled[event.queue, event.id, event.token] = event
                case GaveUp():
                    self.given_up[event.n] = event
                case Requeued():
                    self.requeued[event.n].append(event)
                case Fault():
                    self.faults.append(event)
                    if event.kind.startswith("freeze"):
                        for pid in event.pids:
                            self.freezes[pid].append(event)
        for event in late:
            run = by_token.get((event.queue, event.id, event.token))
            if run is not None:
                run.last = max(run.last, event.at)
                if isinstance(event, Ended):
                    run.end = event
        for runs in self.runs.values():
            runs.sort(key=lambda run: run.start.at)
        self.ran: dict[int, list[Run]] = defaultdict(list)
        for runs in self.runs.values():
            for run in runs:
                self.ran[run.start.n].append(run)
        self.by_id: dict[tuple[str, str], list[Dispatching]] = defaultdict(list)
        for ask in self.asked.values():
            self.by_id[ask.queue, ask.id].append(ask)
        self.cancels: dict[tuple[str, str], list[tuple[Cancelling, Cancelled | None]]]
        self.cancels = defaultdict(list)
        for c, cancelling in self._cancelling.items():
            pair = (cancelling, self._cancelled.get(c))
            self.cancels[cancelling.queue, cancelling.id].append(pair)

    def word(self, n: int) -> str:
        """What a producer was told; nothing, if it died before."""
        answer = self.answers.get(n)
        return "unclear" if answer is None else answer.word

    def answered_at(self, n: int) -> float:
        answer = self.answers.get(n)
        return float("inf") if answer is None else answer.at

    def done_by(self, asked: float, answer: Dispatched | Cancelled | None) -> float:
        """Until when a call may have been carried out: its answer, if that was a clear one."""
        if answer is not None and answer.word != "unclear":
            return answer.at
        given_up = asked + CALL_TIMEOUT if answer is None else answer.at
        end = given_up + ON_ITS_WAY
        for fault in sorted(self.faults, key=lambda fault: fault.at):
            if fault.kind in HOLDS_UP and fault.at <= end and fault.until >= asked:
                end = max(end, fault.until + CALL_TIMEOUT + ON_ITS_WAY)
        return end
