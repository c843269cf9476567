"""What Queasy promises, compared with the journal and with the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from queasy import Queue
from tour.acts import DECLINED, PRIMES, VERSIONS, Tour, unfinished
from tour.app import (
    QUEUES,
    emails,
    errands,
    exports,
    imports,
    inventory,
    payments,
    reminders,
    thumbnails,
    webhooks,
)


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the summary."""

    promised: str
    seen: str
    kept: bool


async def promises(tour: Tour) -> list[Promise]:
    """All promises but one: `guide` checks the last, that no process is left."""
    return [
        quick_ones(tour),
        computed(tour),
        none_lost(tour),
        await server_agrees(tour),
        retried(tour),
        await given_up(tour),
        never_twice_at_once(tour),
        last_data_wins(tour),
        never_early(tour),
        updated(tour),
        await cancelled(tour),
        await hang_killed(tour),
        killed_came_back(tour),
        await audited(),
    ]


def quick_ones(tour: Tour) -> Promise:
    runs = Counter(entry.id for entry in tour.journal.entries(emails.name, "done"))
    once = runs.keys() == tour.dispatched[emails.name] and set(runs.values()) == {1}
    seen = f"{len(tour.dispatched[emails.name]):,} jobs, {runs.total():,} runs"
    return Promise("every quick job ran exactly once", seen, once)


def computed(tour: Tour) -> Promise:
    ended = tour.journal.entries(thumbnails.name, "done")
    right = [entry for entry in ended if entry.said == PRIMES]
    processes = {entry.pid for entry in ended}
    seen = f"{len(right)} in {len(processes)} processes"
    wanted = len(tour.dispatched[thumbnails.name])
    return Promise("computing jobs give the right answer", seen, len(right) == wanted)


def none_lost(tour: Tour) -> Promise:
    """Every dispatched job has an end in the journal, from its handler or its fail handler."""
    ends = ("done", "given up", "cancelled")
    ended = {(entry.queue, entry.id) for entry in tour.journal.entries() if entry.event in ends}
    asked = {(queue, id_) for queue, ids in tour.dispatched.items() for id_ in ids}
    seen = f"{len(asked):,} dispatched, {len(asked & ended):,} ended"
    return Promise("no job is lost, by the journal", seen, asked == ended)


async def server_agrees(tour: Tour) -> Promise:
    """Each run of the id that was dispatched again and again counts as one."""
    wanted = {name: len(ids) for name, ids in tour.dispatched.items()}
    wanted[inventory.name] = len(tour.journal.entries(inventory.name, "done"))
    ended: Counter[str] = Counter()
    left = 0
    for queue in QUEUES:
        totals, counts = await stats(queue), await queue.counts()
        ended[queue.name] = sum(totals.get(end, 0) for end in ("finished", "failed", "cancelled"))
        left += counts.waiting + counts.active + counts.blocked + counts.broken
    seen = f"{ended.total():,} runs ended, {left} jobs left"
    return Promise("no job is lost, by the server", seen, ended == wanted and not left)


async def stats(queue: Queue) -> dict[str, int]:
    return {stat.kind: stat.count for stat in await queue.stats() if stat.minute is None}


def retried(tour: Tour) -> Promise:
    tries: dict[str, list[int]] = {id_: [] for id_ in tour.dispatched[webhooks.name]}
    for entry in tour.journal.entries(webhooks.name, "try"):
        tries[entry.id].append(entry.retries)
    kept = all(counts == [0, 1, 2] for counts in tries.values())
    seen = f"{len(tries)} jobs, {sum(map(len, tries.values()))} tries"
    return Promise("a job that raises is tried again", seen, kept)


async def given_up(tour: Tour) -> Promise:
    reported = [entry.id for entry in tour.journal.entries(payments.name, "given up")]
    record = {
        job.id: job.error.message if job.error else "" async for job in payments.jobs("failed")
    }
    kept = len(reported) == len(record) == DECLINED and set(reported) == record.keys()
    kept = kept and set(record.values()) == {"the card has expired"}
    seen = f"{len(record)} in the failed record, {len(reported)} reported"
    return Promise("a Failure is given up and reported", seen, kept)


def never_twice_at_once(tour: Tour) -> Promise:
    """The journal is in order, so the line after the start of a run must be its end."""
    events = [entry.event for entry in tour.journal.entries(inventory.name)]
    runs = events.count("start")
    overlaps = sum(pair == ("start", "start") for pair in pairwise(events))
    kept = bool(runs) and events == ["start", "done"] * runs
    return Promise("one id never runs twice at once", f"{runs} runs, {overlaps} overlaps", kept)


def last_data_wins(tour: Tour) -> Promise:
    said = [int(entry.said) for entry in tour.journal.entries(inventory.name, "start")]
    rising = all(before < after for before, after in pairwise(said))
    last = said[-1] if said else 0
    seen = f"{VERSIONS} dispatches, number {last} ran last"
    return Promise("and the last data wins", seen, rising and last == VERSIONS)


def never_early(tour: Tour) -> Promise:
    """The embedded server and the handlers are on one machine, so they have the same clock."""
    late = [entry.at - tour.due[entry.id] for entry in tour.journal.entries(reminders.name)]
    kept = len(late) == len(tour.due) and min(late) >= 0
    seen = f"{len(late)} jobs, {span(late)} after their time"
    return Promise("nothing runs before its time", seen, kept)


def updated(tour: Tour) -> Promise:
    runs = [entry for entry in tour.journal.entries(reminders.name) if entry.id == "lunch"]
    kept = [run.said for run in runs] == ["new"] and runs[0].at >= tour.due["lunch"]
    said = " and ".join(f"{run.said} data, {run.at - tour.due[run.id]:+.3f} s" for run in runs)
    return Promise("an updated job runs once, as updated", f"{len(runs)} run, {said}", kept)


async def cancelled(tour: Tour) -> Promise:
    events = [entry.event for entry in tour.journal.entries(exports.name)]
    gone = await exports.get("year") is None
    seen = f"{', then '.join(events)}; {'gone' if gone else 'still there'}"
    kept = events == ["start", "cancelled"] and gone
    return Promise("a running job can be cancelled", seen, kept)


async def hang_killed(tour: Tour) -> Promise:
    entries = tour.journal.entries(imports.name)
    timeouts = [entry.timeouts for entry in entries if entry.event == "start"]
    reported = [entry.said for entry in entries if entry.event == "given up"]
    record = await imports.get("prices")
    count = record.timeout_count if record else 0
    kept = timeouts == [0, 1] and reported == ["timeout"] and count == 2
    pids = len({entry.pid for entry in entries if entry.event == "start"})
    seen = f"{count} timeouts, {pids} processes, {len(reported)} reported"
    return Promise("a hang is killed, retried, given up", seen, kept and pids == 2)


def killed_came_back(tour: Tour) -> Promise:
    """A run that was cut short has a start in the journal, but no end."""
    entries = tour.journal.entries(errands.name)
    cut = {entry.id for entry in unfinished(entries)}
    again = [entry for entry in entries if entry.event == "start" and entry.id in cut]
    again = [entry for entry in again if entry.pid != tour.victim]
    ran = sorted(entry.id for entry in again) == sorted(cut)
    kept = bool(cut) and ran and {entry.stalls for entry in again} == {int(len(cut) == 1)}
    waited = [entry.at - tour.killed_at for entry in again]
    seen = f"{len(again)} of {len(cut)}, {span(waited)} later"
    return Promise("a killed process's jobs run elsewhere", seen, kept)


async def audited() -> Promise:
    faults: list[str] = []
    for queue in QUEUES:
        faults += await queue.audit() + await queue.fail_queue.audit()
    seen = f"{2 * len(QUEUES)} queues, {'; '.join(faults) or 'no error'}"
    return Promise("the audit of every queue is clean", seen, not faults)


def span(seconds: Iterable[float]) -> str:
    found = sorted(seconds) or [0.0]
    return f"{found[0] * 1000:,.0f} to {found[-1] * 1000:,.0f} ms"
