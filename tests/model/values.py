"""The values of the model: dispatches, jobs and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


def is_for_one_lease(client: str) -> bool:
    """Whether a client ends with its lease. A consumer, whose id begins with two ~, does not."""
    return client.startswith("~") and not client.startswith("~~")


class Item(NamedTuple):
    """One dispatch, as a client sends it."""

    id: str
    payload: bytes
    when: str = ""
    flags: str = ""
    given: tuple[dict[str, float], list[str]] | None = None
    """Options: the values set, and the names that are updated."""


class Call(NamedTuple):
    """The last call of a caller, and its replies."""

    number: int
    noted: float
    """When the time of the caller was last recorded."""
    replies: list[str]


class Waiter(NamedTuple):
    """A client that sleeps: when it polls, its other jobs, whether it takes hand-offs."""

    at: float
    beside: int
    hand: bool

    def record(self) -> dict[str, Any]:
        """What is not default."""
        facts = {"beside": self.beside, "hand": self.hand}
        return {name: fact for name, fact in facts.items() if fact}


class Ending(NamedTuple):
    verb: str
    id: str
    token: str
    when: str = ""
    error: dict[str, str] | None = None


@dataclass
class Dispatch:
    """An accepted dispatch, and its run_at."""

    item: Item
    accepted: float
    run_at: float

    def __post_init__(self) -> None:
        data, self.mode, reset, only = self.item.flags or "1t10"
        self.update_data, self.reset = data == "1", reset == "1"
        self.only_if_absent, self.only_if_waiting = only == "1", only == "2"
        self.set, self.update = self.item.given or ({}, [])

    def new_run_at(self, old: float) -> float:
        match self.mode:
            case "t":
                return self.run_at
            case "l":
                return max(old, self.run_at)
            case "e":
                return min(old, self.run_at)
        return old

    def options(self, old: dict[str, float]) -> dict[str, float]:
        kept = {name: value for name, value in old.items() if name not in self.update}
        return kept | {name: self.set[name] for name in self.update if name in self.set}


@dataclass
class Job:
    payload: bytes
    run_at: float
    dispatched_at: float
    options: dict[str, float] = field(default_factory=dict)
    retry_count: int = 0
    stall_count: int = 0
    timeout_count: int = 0
    expiry_count: int = 0
    error: dict[str, str] | None = None
    companions: int | None = None
    origin: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """All values that are not default."""
        names = ("options", "retry_count", "stall_count", "timeout_count", "expiry_count", "origin")
        found = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.companions is not None:
            found["companions"] = self.companions
        return found if self.error is None else found | {"error": self.error}

    def info(self) -> dict[str, Any]:
        """The info as the server stores it: dispatched_at only if it differs from run_at."""
        found = self.facts()
        if self.dispatched_at != self.run_at:
            found["dispatched_at"] = self.dispatched_at
        return found

    def reset(self) -> None:
        self.retry_count = self.stall_count = self.timeout_count = self.expiry_count = 0
        self.error = None
        self.companions = None


@dataclass
class Held:
    """The dispatches that are blocked by a run."""

    job: Job
    """The job that waits when the run has ended."""
    dispatches: list[Dispatch]
    """Applied in this order if the job of the run waits again."""


@dataclass
class Run:
    job: Job
    token: int
    client: str
    cancelled: bool = False
    held: Held | None = None
