"""The fleets of `benchmarks.recovery`: each follows from a seed and a number."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Fault = Literal["kill", "freeze"]
# What a host does: its workers wait for jobs (idle), wait and ran a job of another queue last
# (asleep), are full with long jobs (full), are full while jobs of ten other queues wait for them
# (backlogged), serve other queues only (elsewhere); or it has pull consumers instead of workers
# (consumers).
Duty = Literal["idle", "asleep", "full", "backlogged", "elsewhere", "consumers"]

WAITING: tuple[Duty, ...] = ("idle", "asleep")
FLEETS = ("idle", "asleep", "full", "consumers", "mixed")
MIXED: tuple[Duty, ...] = ("idle", "asleep", "full", "backlogged", "elsewhere", "consumers")
FULL: tuple[Duty, ...] = ("full", "backlogged")
SETTLING = (0.5, 12.0)  # seconds: so faults come at different phases of the polls
PROCESSES = {1: (1, 3), 30: (1, 3), 500: (1, 2)}


@dataclass(frozen=True)
class Round:
    """One fault, and the jobs around it."""

    fault: Fault
    short: int  # jobs that end at once, before all others: workers then accept hand-offs
    running: int  # jobs that are dispatched well before, and run when the host is lost
    at_once: bool  # these are dispatched in one call
    before: int  # jobs that are dispatched in the 50 ms before the fault
    after: tuple[float, ...]  # further jobs: seconds after the fault
    settling: float  # seconds without events before the fault
    returns: bool  # a frozen host serves again afterwards; otherwise it is killed


@dataclass(frozen=True)
class Shape:
    number: int
    fleet: str
    queues: int
    targets: int  # how many of the queues get jobs
    processes: int
    duties: tuple[Duty, ...]  # of each host
    rounds: tuple[Round, ...]  # each loses one of the hosts that are idle or asleep

    def describe(self) -> str:
        faults = ", ".join(one.fault for one in self.rounds)
        return (
            f"{self.fleet}: {len(self.duties)} hosts ({', '.join(self.duties)}), {self.processes} "
            f"processes each, {self.queues} queues ({self.targets} used); {faults}"
        )


def shape(seed: int, number: int) -> Shape:
    """The fleet of that number: always the same for the same seed."""
    dice = random.Random(f"{seed}:{number}")
    fleet = FLEETS[number % len(FLEETS)]
    queues = dice.choice((1, 30, 500))
    duties = _duties(dice, fleet)
    waiting = sum(one in WAITING for one in duties)
    others_serve = any(one in (*FULL, "consumers") for one in duties)
    lost = dice.randint(1, waiting if others_serve else waiting - 1)
    return Shape(
        number=number,
        fleet=fleet,
        queues=queues,
        targets=min(queues, dice.randint(1, 3)),
        processes=dice.randint(*PROCESSES[queues]),
        duties=duties,
        rounds=tuple(_round(dice) for _ in range(lost)),
    )


def _duties(dice: random.Random, fleet: str) -> tuple[Duty, ...]:
    hosts = dice.randint(2, 4)
    if fleet in WAITING:
        return (fleet,) * hosts
    first = WAITING[: dice.randint(1, min(2, hosts - 1))]
    others = hosts - len(first)
    if fleet == "mixed":
        rest = [dice.choice(MIXED) for _ in range(others)]
        if set(rest) == {"elsewhere"}:
            rest[-1] = "idle"
        return (*first, *rest)
    duty: Duty = dice.choice(FULL) if fleet == "full" else "consumers"
    return (*first, *(duty,) * others)


def _round(dice: random.Random) -> Round:
    fault: Fault = dice.choice(("kill", "freeze"))
    idle = fault == "freeze" and dice.random() < 0.5  # the host vanishes while it is idle
    running = 0 if idle else dice.randint(1, 12)
    before = dice.randint(0, 3)
    after = tuple(sorted(dice.choice((0.0, dice.random() * 5)) for _ in range(dice.randint(0, 4))))
    if not running + before + len(after):
        after = (0.0,)
    return Round(
        fault=fault,
        short=dice.choice((0, dice.randint(1, 8))),
        running=running,
        at_once=dice.random() < 0.5,
        before=before,
        after=after,
        settling=dice.uniform(*SETTLING),
        returns=dice.random() < 0.5,
    )
