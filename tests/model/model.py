"""The server functions in plain Python: an executable specification.

One `Queue` per queue, one method per server function, milliseconds everywhere. It is written from
the specification, not from the Lua: jobs are objects that move from dict to dict. Read `values`,
`clock` and `jobs` first; this module adds clients, leases and dequeue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tests.model.clock import CALL_EVERY, OUTAGE, RECONNECT, RECORD_EVERY, SILENCE
from tests.model.jobs import BYTES, Jobs, Number
from tests.model.values import Ending, Run, Waiter, is_for_one_lease

SWEEP_CLIENTS, SWEEP_JOBS = 10, 100
FEW_LEASES, READ_TOGETHER = 100, 5
WAITER_GONE = 60_000
PAGE = 100  # how many due jobs a dequeue reads at a time, after the first
EXPIRIES = 10  # clients among which the server looks for the first that holds a job


class SweepBudget:
    """What is left of the bounds of one sweep."""

    def __init__(self) -> None:
        self.ended = self.bytes = 0

    def __bool__(self) -> bool:
        return self.ended < SWEEP_JOBS and self.bytes < BYTES

    def take(self, size: int) -> None:
        self.ended += 1
        self.bytes += size


class Queue(Jobs):
    def __init__(self, fail: Queue | None = None) -> None:
        super().__init__(fail)
        self.clients: dict[str, float] = {}  # the expiry of each
        self.requests: dict[
            str, tuple[str, int, int]
        ] = {}  # the last request, and the first and last token of its batch
        self.batches: dict[
            str, list[str]
        ] = {}  # the ids of the last batch, for clients with many leases
        self.swept: set[str] = (
            set()
        )  # clients that lost some of their jobs; further sweeps end the rest
        self.workers: dict[str, bytes] = {}
        self.token = 0
        self.passed = False  # this call skipped suspects

    # The end of leases

    def settle(self, now: float, endings: Sequence[Ending]) -> list[str]:
        self.open(now)
        replies = self.end_all(endings)
        self.wake()
        return replies

    def end_all(self, endings: Sequence[Ending]) -> list[str]:
        replies = [self.end_lease(ending) for ending in endings]
        if set(replies) - {"lost"}:
            self.write_records()
        return replies

    def end_lease(self, ending: Ending) -> str:
        run = self.active.get(ending.id)
        if not run or str(run.token) != ending.token:
            return "lost"
        status = self.end(ending.id, ending.verb, ending.when, ending.error)
        if is_for_one_lease(run.client) and not self.runs_of(run.client):
            self.forget(run.client)
        return status

    # Clients

    def alive(self, client: str) -> bool:
        return client in self.clients and client not in self.swept

    def runs_of(self, client: str) -> list[str]:
        return sorted((i for i, run in self.active.items() if run.client == client), key=str.encode)

    def cancels_of(self, client: str) -> list[tuple[str, int]]:
        runs = [(id_, self.active[id_]) for id_ in self.runs_of(client)]
        return [(id_, run.token) for id_, run in runs if run.cancelled]

    def forget(self, client: str) -> None:
        self.swept.discard(client)
        for known in (self.clients, self.requests, self.batches, self.workers, self.waiters):
            known.pop(client, None)

    def register(self, now: float, client: str, lease: int, worker: bytes) -> str:
        self.open(now)
        if client in self.swept:
            return "lost"
        self.clients[client] = now + lease
        if worker:
            self.workers[client] = worker
        self.write()
        return "ok"

    def bump(
        self, now: float, lease: int, clients: Iterable[str]
    ) -> tuple[list[tuple[str, Any]], int]:
        self.open(now)
        replies = [self.bump_one(client, lease) for client in clients]
        self.sweep_some()
        self.wake()
        return replies, self.ms_until(self.next_expiry())

    def bump_one(self, client: str, lease: int) -> tuple[str, Any]:
        if not self.alive(client):
            return ("lost", [])
        least = 0 if self.runs_of(client) else self.clients[client]
        self.clients[client] = max(self.now + lease, least)
        self.write()
        return ("ok", self.cancels_of(client))

    def extend(self, now: float, id_: str, token: str, lease: int) -> str:
        self.open(now)
        run = self.active.get(id_)
        if not run or str(run.token) != token or not self.alive(run.client):
            return "lost"
        least = 0 if is_for_one_lease(run.client) else self.clients[run.client]
        self.clients[run.client] = max(now + lease, least)
        self.write()
        return "cancel" if run.cancelled else "ok"

    def sweep(self, now: float) -> int:
        self.open(now)
        ended = self.sweep_some()
        self.wake()
        return ended

    def sweep_some(self) -> int:
        line, budget = self.expired_before(), SweepBudget()
        dead = sorted((expiry, client) for client, expiry in self.clients.items() if expiry <= line)
        for _, client in dead[:SWEEP_CLIENTS]:
            if budget:
                self.end_client(client, budget, "expiry" if client.startswith("~") else "stall")
        if not dead:
            self.record_call()
            return 0
        self.write_records()
        return max(1, budget.ended)

    def end_client(self, client: str, budget: SweepBudget, verb: str) -> None:
        for id_ in self.runs_of(client):
            if not budget:
                break
            run = self.active[id_]
            own, held = len(run.job.payload), len(run.held.job.payload) if run.held else 0
            status = self.end(id_, verb)
            overwritten = run.held and any(d.update_data for d in run.held.dispatches)
            handled = overwritten or status in ("failed", "cancelled")
            budget.take(held + (own if handled else 0))
        if not self.runs_of(client):
            self.forget(client)
        else:
            self.swept.add(client)
            self.requests.pop(client, None)
            self.batches.pop(client, None)

    def evict(self, now: float, client: str) -> tuple[str, int]:
        self.open(now)
        state, ended = "absent", 0
        if client in self.clients:
            budget = SweepBudget()
            self.end_client(client, budget, "release")
            ended = budget.ended
            self.write_records()
            state = "more" if client in self.clients else "gone"
        self.wake()
        if self.has_due_job():
            self.waiters.clear()  # the dead client may have been woken without polling
        return (state, ended)

    # Dequeue

    def dequeue(
        self, now: float, client: str, lease: int, limit: int, request: str, waiter: str,
        waits: int, endings: Sequence[Ending], beside: int = 0, hand: bool = False,
        call: Number = None,
    ) -> tuple[str, int, list[str], list[Any], list[tuple[str, int]]]:  # fmt: skip
        self.open(now)
        settled = self.end_all(endings)
        self.passed = False
        state, ids = self.batch_for(client, lease, limit, request, beside, call)
        beside += len(ids)
        sleeps = waits > 0 and not ids and state != "lost"
        sleeps = sleeps and not (limit == 0 and self.has_due_job(beside))
        if sleeps and not is_for_one_lease(client) and not self.runs_of(client):
            self.clients[client] = now + waits + lease  # it said when it polls again
            self.write()
        needs_time = limit == 0 or len(ids) < limit
        next_poll = self.next_in(beside) if state != "lost" and needs_time else -1
        if sleeps:  # no other waiter has a subscription, so it keeps the time
            next_poll = waits if next_poll < 0 else min(next_poll, waits)
        if sleeps:
            self.set_waiter(waiter, math.floor(now + next_poll), beside, hand)
        elif self.waiters.pop(waiter, None) is not None:
            self.write()
        self.wake()
        if self.passed:
            self.wake_for_suspects()
        takes_nothing = limit == 0 and waits == 0 and state == "ok"
        leaves_due_jobs = bool(ids) and self.has_due_job(beside)
        if leaves_due_jobs or (takes_nothing and self.has_due_job()):
            self.waiters.clear()  # a client that leaves due jobs wakes another
        return state, next_poll, settled, [self.row(id_) for id_ in ids], self.cancels_of(client)

    def batch_for(
        self, client: str, lease: int, limit: int, request: str, beside: int, call: Number
    ) -> tuple[str, list[str]]:
        one_lease, known = is_for_one_lease(client), self.alive(client)
        if not known and (client in self.swept or not one_lease):
            return "lost", []
        if known and self.clients[client] <= self.expired_before():
            self.bump_one(client, lease)
        self.sweep_some()
        if one_lease and known:
            return "ok", self.same_batch(client, 0, self.token)
        if self.answered(call, ()) is not None:
            return "overtaken", []
        if request and not one_lease and self.requests.get(client, ("",))[0] == request:
            return "ok", self.same_batch(client, *self.requests[client][1:])
        if not one_lease and self.is_overtaken(client, request):
            return "overtaken", []
        if limit == 0 and request and not one_lease:
            self.requests[client] = (request, 0, 0)
            self.batches.pop(client, None)
            self.write()
        paused = self.settings.get("paused")
        if call and (paused or limit):
            self.keep_call(call, ["dequeued"])
            self.write()
        if paused:
            return "paused", []
        return "ok", self.take(client, lease, limit, "" if one_lease else request, beside)

    def is_overtaken(self, client: str, request: str) -> bool:
        """Whether a client that numbers its requests has sent a later one already."""
        last = self.requests.get(client, ("",))[0]
        return request.isdigit() and last.isdigit() and int(request) < int(last)

    def same_batch(self, client: str, first: int, last: int) -> list[str]:
        ids = [id_ for id_ in self.runs_of(client) if first <= self.active[id_].token <= last]
        return sorted(ids, key=lambda id_: self.active[id_].token)

    def take(self, client: str, lease: int, limit: int, request: str, beside: int) -> list[str]:
        ids = self.within_bytes(self.due(limit, beside))
        if ids:  # tokens follow the clock
            self.token = max(self.token, math.floor(self.now * 1000))
        for token, id_ in enumerate(ids, self.token + 1):
            self.active[id_] = Run(self.waiting.pop(id_), token, client)
        if ids:
            self.count("dequeued", len(ids))
            self.clients[client] = self.now + lease
            if request:
                self.requests[client] = (request, self.token + 1, self.token + len(ids))
                self.batches.pop(client, None)
                if len(self.runs_of(client)) > FEW_LEASES:
                    self.batches[client] = ids
            self.token += len(ids)
            self.write()
        return ids

    def within_bytes(self, ids: list[str]) -> list[str]:
        """The first ids, in steps of five, until their payloads reach the limit."""
        taken: list[str] = []
        while len(taken) < len(ids) and sum(len(self.waiting[i].payload) for i in taken) < BYTES:
            taken = ids[: len(taken) + READ_TOGETHER]
        return taken

    def due(self, limit: int, beside: int) -> list[str]:
        """The first due jobs that may run together, beside so many others."""
        order = [(job.run_at, id_.encode(), id_) for id_, job in self.waiting.items()]
        due = [id_ for run_at, _, id_ in sorted(order) if run_at <= self.time]
        found: list[str] = []
        most = math.inf  # companions of those found
        for id_ in self.larger_groups_first(due, limit):
            companions, others = self.waiting[id_].companions, beside + len(found)
            if len(found) == limit or others > most:
                break
            if companions is not None and companions < others:
                self.passed = True
            else:
                found.append(id_)
                most = min(most, math.inf if companions is None else companions)
        return found

    def larger_groups_first(self, due: list[str], first: int) -> list[str]:
        """The due jobs; in each page, suspects that may have more companions come before others."""
        if any(self.waiting[id_].companions is not None for id_ in due[:first]):
            first = max(first, PAGE)
        starts = [0, *range(first, len(due), PAGE)]
        for start, end in zip(starts, [*starts[1:], len(due)], strict=True):
            page = due[start:end]
            places = [n for n, id_ in enumerate(page) if self.waiting[id_].companions is not None]
            suspects = [page[n] for n in places]
            suspects.sort(key=lambda id_: -(self.waiting[id_].companions or 0))
            for n, id_ in zip(places, suspects, strict=True):
                due[start + n] = id_
        return due

    def has_due_job(self, beside: int = 0) -> bool:
        return not self.settings.get("paused") and bool(self.due(1, beside))

    def set_waiter(self, waiter: str, at: float, beside: int, hand: bool) -> None:
        if not waiter:
            return
        for name in [
            name for name, known in self.waiters.items() if known.at <= self.now - WAITER_GONE
        ]:
            del self.waiters[name]
        self.waiters[waiter] = Waiter(at, beside, hand)
        self.write()

    def next_event(self, leases: bool = True, passed: bool = False) -> float | None:
        job_due = super().next_event(passed=passed)
        times = [] if job_due is None else [job_due if job_due > self.time else self.now]
        expiry = self.next_expiry(early=not times or times[0] > self.now) if leases else None
        times += [] if expiry is None else [expiry]
        return min(times, default=None)

    def next_expiry(self, early: bool = True) -> float | None:
        """When a call is needed because the first lease of a job expires; with `early`, also before
        that, so that the silence does not look like an outage.
        """
        first = sorted((expiry, client.encode(), client) for client, expiry in self.clients.items())
        first = first[:EXPIRIES]
        holders = [expiry for expiry, _, client in first if self.runs_of(client)]
        if not self.active or (not holders and len(first) < EXPIRIES):
            return None
        expiry = holders[0] if holders else first[-1][0]
        if self.in_grace() and expiry > self.gap_from:
            expiry = max(expiry, self.grace_until)
        last_call = self.last_call() or self.now
        if not early:
            return expiry
        at, left = expiry, expiry - last_call
        if left > CALL_EVERY:
            at = max(last_call + CALL_EVERY, expiry - OUTAGE - 1_000)
        if self.continues_silence(last_call):
            if left > RECONNECT:
                at = max(last_call + RECORD_EVERY, min(at, expiry - RECONNECT))
            elif left > SILENCE - 250:
                at = last_call + SILENCE - 250
        return at

    def next_in(self, beside: int) -> int:
        """Milliseconds until there is a reason to poll again; -1 if there is none."""
        at = self.next_event(passed=beside > 0 and not self.has_due_job(beside))
        return self.ms_until(at)

    def ms_until(self, at: float | None) -> int:
        return -1 if at is None else max(0, math.ceil(at - self.now))

    def row(self, id_: str) -> tuple[Any, ...]:
        run = self.active[id_]
        return (id_, run.token, run.job.run_at, run.job.payload, run.job.info())
