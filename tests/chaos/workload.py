"""The jobs that producers dispatch. They are drawn from a seed, so that a run can be repeated."""

import math
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal

from queasy import Dispatch, JobOptions
from tests.chaos.history import Dispatching, now

SHORT = ("fast", "work", "plain", "hot")
# For runs that take longer than a lease. Pull consumers do not extend leases, and skip these.
LONG = ("long", "long-plain")
QUEUES = (*SHORT, *LONG)
HOT_IDS = 20
# Seconds, for handlers.
TIMEOUT, LONG_TIMEOUT = 2.0, 60.0
BACKOFF = 0.1
# Seconds after which a producer does not know whether a call was executed.
CALL_TIMEOUT = 5.0
# What a handler does with a job, how often in a thousand jobs, in which queue, and job options.
BEHAVIOURS: tuple[tuple[str, float, str, JobOptions | None], ...] = (
    ("done", 932, "", None),
    ("raise:1", 20, "", None),
    ("raise:9", 8, "", JobOptions(max_retries=2)),
    ("permanent", 8, "", None),
    ("failure", 8, "", None),
    ("retry:0.3", 20, "", None),
    ("hang", 1, "work", None),
    ("hang:always", 0.5, "work", JobOptions(max_timeouts=2)),
    ("spin", 0.5, "plain", None),
    ("gil", 0.3, "plain", None),
    ("exit", 0.8, "work", None),
    ("crash", 0.5, "plain", None),
    ("exit:always", 0.3, "plain", JobOptions(max_stalls=3)),
)
# Jobs that fail in the end. No other job may fail, whatever happens to its worker.
FAILING = ("raise:9", "permanent", "failure", "hang:always", "exit:always")
WEIGHTS = [behaviour[1] for behaviour in BEHAVIOURS]

Kind = Literal["one", "many", "later", "at", "hot", "long", "cancel", "cancel running"]
KINDS: dict[Kind, int] = {
    "one": 40, "many": 6, "later": 12, "at": 3, "hot": 30, "cancel": 4, "cancel running": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One dispatch, and the event that is written before it."""

    queue: str
    dispatch: Dispatch
    event: Dispatching


@dataclass
class Workload:
    """The decisions of one producer."""

    random: Random
    number: int
    """Unique, also between a killed producer and its replacement."""
    long_rate: float = 0.0
    """Jobs per second that take longer than a lease."""
    long_until: float = 0.0
    """No such jobs from then on, so that they end soon after all others."""
    far_delay: float = 0.0
    """Seconds; half of the delayed jobs have this delay. They are not drained during a fault."""
    _count: int = 0
    _next_long: float = field(init=False)
    _recent: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw_long()

    def _draw_long(self) -> None:
        rate = self.long_rate
        self._next_long = now() + self.random.expovariate(rate) if rate else math.inf

    def kind(self) -> Kind:
        if self._next_long <= now() < self.long_until:
            self._draw_long()
            return "long"
        return self.random.choices(list(KINDS), list(KINDS.values()))[0]

    def one(self, *, delay: float = 0.0, at: bool = False) -> Request:
        """A job with a unique id."""
        behaviour, _, queue, options = self.random.choices(BEHAVIOURS, WEIGHTS)[0]
        queue = queue or self.random.choice(("fast", "fast", "fast", "work", "plain"))
        data = self._data(behaviour)
        id_ = f"j{data['n']}"
        event = Dispatching(
            now(), data["n"], queue, id_, behaviour, now() + delay if delay else 0.0
        )
        self._recent = [*self._recent[-50:], (queue, id_)]
        if at:
            when = datetime.now(UTC) + timedelta(seconds=delay)
            return Request(queue, Dispatch(data, id=id_, run_at=when, options=options), event)
        return Request(queue, Dispatch(data, id=id_, delay=delay or None, options=options), event)

    def hot(self) -> Request:
        """One of a few ids, which updates an existing job in every possible way."""
        choice = self.random.choice
        data = self._data(
            "done" if self.random.random() < 0.9 else choice(("raise:1", "retry:0.1"))
        )
        if self.random.random() < 0.6:  # long enough for dispatches to arrive while it runs
            data["seconds"] = self.random.uniform(0.05, 1.4)
        updates = self.random.random() < 0.8
        dispatch = Dispatch(
            data,
            id=f"hot-{self.random.randrange(HOT_IDS)}",
            delay=choice((None, None, 0.05, 0.3)),
            update_data=updates,
            update_run_at=choice((True, False, "if_later", "if_earlier")),
            update_options=choice((True, False)),
            reset_counts=choice((None, True, False)),
        )
        event = Dispatching(
            now(), data["n"], "hot", str(dispatch.id), data["behaviour"], 0.0, updates
        )
        return Request("hot", dispatch, event)

    def long(self) -> Request:
        """A job that takes longer than a lease."""
        data = self._data("done")
        data["seconds"] = self.random.uniform(14, 20)
        queue, id_ = self.random.choice(LONG), f"j{data['n']}"
        self._recent = [*self._recent[-50:], (queue, id_)]
        return Request(
            queue, Dispatch(data, id=id_), Dispatching(now(), data["n"], queue, id_, "done")
        )

    def many(self) -> list[Request]:
        """Several jobs for one queue."""
        requests = [self.one() for _ in range(self.random.randrange(2, 40))]
        return [request for request in requests if request.queue == requests[0].queue]

    def delay(self) -> float:
        if self.far_delay and self.random.random() < 0.5:
            return self.far_delay
        return self.random.choice((0.05, 0.5, self.random.uniform(0, 5)))

    def job_to_cancel(self) -> tuple[str, str] | None:
        """Queue and id of a recent dispatch."""
        return self.random.choice(self._recent) if self._recent else None

    def next_cancel(self) -> str:
        """A unique name for a cancel."""
        self._count += 1
        return f"{self.number}-{self._count}"

    def _data(self, behaviour: str) -> dict[str, Any]:
        self._count += 1
        blob = "x" * self.random.choice((10, 100, 100, 2000)) + str(self.random.random())
        long = self.random.random() < 0.01
        seconds = self.random.uniform(0.2, 1.2) if long else self.random.uniform(0, 0.01)
        return {
            "n": self.number * 10_000_000 + self._count,
            "behaviour": behaviour,
            "seconds": seconds,
            "blob": blob,
            "crc": zlib.crc32(blob.encode()),
        }
