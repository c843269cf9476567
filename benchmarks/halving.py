"""Simulates how suspects are isolated after a crash, and computes what no schedule can beat.

The simulation is `benchmarks.suspects` without a server: a process dies with a hundred jobs in
flight, and the other processes end what they run two seconds later. No time is lost: a process
takes its next group at once, and a process that died is back after `RESTART`. The poisons are at
random places. So the simulation shows what halving costs, and the benchmark what Queasy adds.

The bound is the least time in which any schedule can clear the innocent, on average over all places
of one poison, if all processes always work. It is for a schedule that even knows that there is one
poison. But no job ever has more companions than it may have.

    python -m benchmarks.halving
"""

from __future__ import annotations

import argparse
import functools
import heapq
import random
import statistics
from collections.abc import Collection, Mapping, Sequence

import msgspec

JOBS = 100
RUN, DIE = 2.0, 0.1
# From a death until a new process takes jobs, in seconds, on an otherwise idle machine.
RESTART = 0.16
MAX_STALLS = 3
# Two rounds of runs, and the time in which processes start.
TWO_ROUNDS = 2 * RUN + 0.5


def halved(n: int) -> int:
    """How many companions each of n jobs may have after their process died."""
    return (n - 1) // 2


def oldest_first(due: Sequence[int], companions: Mapping[int, int]) -> list[int]:
    """The next group: jobs in order, as long as each may have that many companions."""
    group: list[int] = []
    for job in due:
        if any(companions[one] < len(group) for one in [*group, job]):
            continue
        group.append(job)
    return group


def largest_first(due: Sequence[int], companions: Mapping[int, int]) -> list[int]:
    """The next group if jobs that may have more companions come first."""
    return oldest_first(sorted(due, key=lambda job: -companions[job]), companions)


ORDERS = {"oldest first": oldest_first, "largest group first": largest_first}


class Result(msgspec.Struct, frozen=True):
    ends: list[float]
    """When each innocent job ended, in order."""
    deaths: int
    stalls: dict[int, int]
    """Of each job that stalled."""


class Crash:
    """What happens after a crash of one of several processes. The others are busy at first."""

    def __init__(self, order: str, poisons: Collection[int], processes: int) -> None:
        self._next_group = ORDERS[order]
        self._poisons = set(poisons)
        self._due = list(range(JOBS))
        self._companions = dict.fromkeys(self._due, halved(JOBS))
        self._ends: list[float] = []
        self._stalls: dict[int, int] = {}
        self._deaths = 1
        self._idle = 0
        # When a process is free, and the group that it ran until then.
        self._free: list[tuple[float, list[int]]] = [(RESTART, []), *[(RUN, [])] * (processes - 1)]
        heapq.heapify(self._free)

    def play(self) -> Result:
        while self._free:
            now, group = heapq.heappop(self._free)
            if self._poisons.intersection(group):
                self._die(now, group)
            else:
                self._ends += [now] * len(group)
                self._take(now)
        return Result(self._ends, self._deaths, self._stalls)

    def _take(self, now: float) -> None:
        group = self._next_group(self._due, self._companions)
        self._due = [job for job in self._due if job not in group]
        lasts = DIE if self._poisons.intersection(group) else RUN
        if group:
            heapq.heappush(self._free, (now + lasts, group))
        else:
            self._idle += 1

    def _die(self, now: float, group: Sequence[int]) -> None:
        self._deaths += 1
        for job in group:
            self._companions[job] = halved(len(group))
            self._stalls[job] = self._stalls.get(job, 0) + (len(group) == 1)
        self._due += [job for job in group if self._stalls[job] < MAX_STALLS]
        self._due.sort()
        for _ in range(self._idle):
            heapq.heappush(self._free, (now, []))
        self._idle = 0
        heapq.heappush(self._free, (now + RESTART, []))


@functools.cache
def least_work(jobs: int, companions: int) -> float:
    """Process seconds to clear all but one of these jobs, of which one is the poison.

    A schedule runs some of them. If they die, they may have fewer companions, and the others are
    innocent: each needs its share of a group run. If they survive, the poison is among the others.
    Innocent jobs from before may have filled the rest of the group. Each saves its own share: they
    may have at least twice as many companions, because they did not die with these jobs. The best
    number to run is that with the least work on average.
    """
    if jobs == 1:
        return 0.0
    share = RUN / (companions + 1)  # of a group run, for each job
    older_share = RUN / (2 * companions + 1)
    least = float("inf")
    for group in range(1, min(companions + 1, jobs - 1) + 1):
        others = jobs - group
        dies = DIE + RESTART + least_work(group, halved(group)) + others * share
        filled = (companions + 1 - group) * older_share
        survives = RUN - filled + least_work(others, companions)
        least = min(least, (group * dies + others * survives) / jobs)
    return least


def bound(processes: int) -> float:
    """No schedule clears all innocent jobs sooner, on average, if there is one poison."""
    busy = RESTART + RUN * (processes - 1)
    return (busy + least_work(JOBS, halved(JOBS))) / processes


def row(order: str, poisons: int, processes: int, times: int) -> str:
    places = random.Random(1)  # the same for each order
    results = [
        Crash(order, places.sample(range(JOBS), poisons), processes).play() for _ in range(times)
    ]
    half = statistics.mean(result.ends[len(result.ends) // 2] for result in results)
    last = statistics.mean(result.ends[-1] for result in results)
    in_time = statistics.mean(
        sum(end <= TWO_ROUNDS for end in result.ends) / len(result.ends) for result in results
    )
    deaths = statistics.mean(result.deaths for result in results)
    least = f"{bound(processes):.1f} s" if poisons == 1 else "-"
    return (
        f"| {processes} | {poisons} | {order} | {half:.1f} s | {in_time:.0%} | {last:.1f} s "
        f"| {least} | {deaths:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halving", description=__doc__)
    parser.add_argument("--times", type=int, default=400, help="crashes in each row")
    options = parser.parse_args()
    print(
        "| processes | poisons | order | half of the innocent ended | within two rounds "
        "| all | bound for all | deaths |\n|---:|---:|---|---:|---:|---:|---:|---:|"
    )
    for processes in (2, 4, 8):
        for poisons in (1, 3):
            for order in ORDERS:
                print(row(order, poisons, processes, options.times))


if __name__ == "__main__":
    main()
