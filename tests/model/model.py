"""What the server functions do, as plain Python: the specification that runs.

One `Queue` per queue, one method per server function, milliseconds everywhere. Written from the
words of the specification, not from the Lua: jobs are objects that move from dict to dict. Read
values, clock, jobs, and then this: who holds the jobs, and how they are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tests.model.clock import HEARD_EVERY
from tests.model.jobs import BYTES, Jobs
from tests.model.values import Ending, Run

SWEEP_CLIENTS, SWEEP_JOBS = 10, 100
FEW_LEASES, READ_AT_ONCE = 100, 5
WAITER_GONE = 60_000


class Room:
    """What one sweep may still do."""

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
        self.clients: dict[str, float] = {}  # until when each is taken to be alive
        self.requests: dict[str, tuple[str, int, int]] = {}  # the last, and its tokens
        self.batches: dict[str, list[str]] = {}  # the ids of the last, of who holds many
        self.swept: set[str] = set()  # those who lost some of their jobs: the rest will follow
        self.workers: dict[str, bytes] = {}
        self.token = 0
        self.passed = False  # over suspects, in this call

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
        if run.client.startswith("~") and not self.runs_of(run.client):
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

    def bump(self, now: float, lease: int, clients: Iterable[str]) -> list[tuple[str, Any]]:
        self.open(now)
        replies = [self.bump_one(client, lease) for client in clients]
        self.sweep_some()
        self.wake()
        return replies

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
        least = 0 if run.client.startswith("~") else self.clients[run.client]
        self.clients[run.client] = max(now + lease, least)
        self.write()
        return "cancel" if run.cancelled else "ok"

    def sweep(self, now: float) -> int:
        self.open(now)
        ended = self.sweep_some()
        self.wake()
        return ended

    def sweep_some(self) -> int:
        line, room = self.dead_line(), Room()
        dead = sorted((expiry, client) for client, expiry in self.clients.items() if expiry <= line)
        for _, client in dead[:SWEEP_CLIENTS]:
            if room:
                self.end_client(client, room, "stall")
        if not dead:
            self.heard()
            return 0
        self.write_records()
        return max(1, room.ended)

    def end_client(
        self, client: str, room: Room, verb: str, started: Sequence[str] | None = None
    ) -> None:
        for id_ in self.runs_of(client):
            if not room:
                break
            run = self.active[id_]
            own, held = len(run.job.payload), len(run.held.job.payload) if run.held else 0
            status = self.end(id_, verb if started is None or id_ in started else "release")
            overwritten = run.held and any(d.update_data for d in run.held.dispatches)
            handled = overwritten or status in ("failed", "cancelled")
            room.take(held + (own if handled else 0))
        if not self.runs_of(client):
            self.forget(client)
        else:
            self.swept.add(client)
            self.requests.pop(client, None)
            self.batches.pop(client, None)

    def evict(self, now: float, client: str, verb: str, ids: Sequence[str]) -> tuple[str, int]:
        self.open(now)
        state, ended = "absent", 0
        if client in self.clients:
            verb = "death" if verb == "stall" else verb
            room = Room()
            self.end_client(client, room, verb, ids or None)
            ended = room.ended
            self.write_records()
            state = "more" if client in self.clients else "gone"
        self.wake()
        if self.to_be_taken():
            self.waiters.clear()  # it may have been woken, and not have looked
        return (state, ended)

    # Dequeue

    def dequeue(
        self, now: float, client: str, lease: int, limit: int, request: str, waiter: str,
        waits: int, endings: Sequence[Ending], passes: bool = False,
    ) -> tuple[str, int, list[str], list[Any], list[tuple[str, int]]]:  # fmt: skip
        self.open(now)
        settled = self.end_all(endings)
        self.passed = False
        state, ids = self.batch_for(client, lease, limit, request, passes)
        sleeps = waits > 0 and not ids and state != "lost"
        sleeps = sleeps and not (limit == 0 and self.to_be_taken(passes))
        if sleeps and not client.startswith("~") and not self.runs_of(client):
            self.clients[client] = now + 2 * waits + lease  # it has said when it looks again
            self.write()
        wants_to_know = limit == 0 or len(ids) < limit
        look = self.next_in(passes) if state != "lost" and wants_to_know else -1
        look_in = (waits if look < 0 else min(look, waits)) if sleeps else None
        self.stand_by(waiter, look_in, passes)
        self.wake()
        if self.passed:
            self.wake_for_suspects()
        no_use = limit == 0 and waits == 0 and state == "ok"
        if self.to_be_taken() and (no_use or (ids and look == 0)):
            self.waiters.clear()  # who leaves what is due says so, and another is woken
        return state, look, settled, [self.row(id_) for id_ in ids], self.cancels_of(client)

    def batch_for(
        self, client: str, lease: int, limit: int, request: str, passes: bool
    ) -> tuple[str, list[str]]:
        one_lease, known = client.startswith("~"), self.alive(client)
        if not known and (client in self.swept or not one_lease):
            return "lost", []
        if known and self.clients[client] <= self.dead_line():
            self.bump_one(client, lease)
        self.sweep_some()
        if one_lease and known:
            return "ok", self.same_batch(client, 0, self.token)
        if request and not one_lease and self.requests.get(client, ("",))[0] == request:
            return "ok", self.same_batch(client, *self.requests[client][1:])
        if not one_lease and self.is_overtaken(client, request):
            return "overtaken", []
        if limit == 0 and request and not one_lease:
            self.requests[client] = (request, 0, 0)
            self.batches.pop(client, None)
            self.write()
        if self.settings.get("paused"):
            return "paused", []
        return "ok", self.take(client, lease, limit, "" if one_lease else request, passes)

    def is_overtaken(self, client: str, request: str) -> bool:
        """Of those who number their requests, one below the last is nobody's any more."""
        last = self.requests.get(client, ("",))[0]
        return request.isdigit() and last.isdigit() and int(request) < int(last)

    def same_batch(self, client: str, first: int, last: int) -> list[str]:
        ids = [id_ for id_ in self.runs_of(client) if first <= self.active[id_].token <= last]
        return sorted(ids, key=lambda id_: self.active[id_].token)

    def take(self, client: str, lease: int, limit: int, request: str, passes: bool) -> list[str]:
        ids = self.within_bytes(self.due(limit, passes))
        suspects = [at for at, id_ in enumerate(ids) if self.waiting[id_].suspect]
        if suspects:  # each comes alone
            ids = ids[: max(1, suspects[0])]
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
        """The first of them, in fives, until they are enough."""
        taken: list[str] = []
        while len(taken) < len(ids) and sum(len(self.waiting[i].payload) for i in taken) < BYTES:
            taken = ids[: len(taken) + READ_AT_ONCE]
        return taken

    def due(self, limit: int, passes: bool) -> list[str]:
        order = [(job.run_at, id_.encode(), id_) for id_, job in self.waiting.items()]
        due = [id_ for run_at, _, id_ in sorted(order) if run_at <= self.time]
        if passes:
            self.passed = self.passed or any(self.waiting[id_].suspect for id_ in due[:limit])
            due = [id_ for id_ in due if not self.waiting[id_].suspect]
        return due[:limit]

    def to_be_taken(self, passes: bool = False) -> bool:
        return not self.settings.get("paused") and bool(self.due(1, passes))

    def stand_by(self, waiter: str, look_in: float | None, passes: bool) -> None:
        if waiter and look_in is not None:
            gone = [name for name, at in self.waiters.items() if at <= self.now - WAITER_GONE]
            for name in gone:
                del self.waiters[name]
            self.waiters[waiter] = math.floor(self.now + look_in) - (0.5 if passes else 0)
            self.write()
        elif self.waiters.pop(waiter, None) is not None:
            self.write()

    def next_event(self, leases: bool = True, passed: bool = False) -> float | None:
        job_due = super().next_event(passed=passed)
        times = [] if job_due is None else [job_due if job_due > self.time else self.now]
        expiries = [
            max(expiry, self.grace_until) if self.in_grace() and expiry > self.gap_from else expiry
            for expiry in (self.clients.values() if leases else ())
        ]
        times += expiries
        heard = self.now if self.seen is None else self.seen
        if expiries and self.active and min(expiries) - heard > HEARD_EVERY:
            times.append(max(heard + HEARD_EVERY, min(expiries) - HEARD_EVERY))
        return min(times, default=None)

    def next_in(self, passes: bool) -> int:
        """Milliseconds until there is a reason to look again."""
        at = self.next_event(passed=passes and not self.to_be_taken(passes))
        return -1 if at is None else max(0, math.ceil(at - self.now))

    def row(self, id_: str) -> tuple[Any, ...]:
        run = self.active[id_]
        return (id_, run.token, run.job.run_at, run.job.payload, run.job.info())
