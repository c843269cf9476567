"""One queue's calls to the server, for a consumer: join, poll, bump, reconcile, leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from queasy.consumer.leases import LeaseRecord
from queasy.consumer.state import ConsumerQueue
from queasy.errors import SERVER_AWAY, InvalidInput, QueasyError
from queasy.job import Job
from queasy.operation import run_operation
from queasy.operations import (
    MAX_BROKEN_IN_A_ROW,
    REFUSED_RETRY_SECONDS,
    SAFETY_POLL_SECONDS,
    decoding_problem,
    evict,
    forward_wake_up,
    leases_of,
    settle_all,
    until_done,
    wrong_codec,
)
from queasy.outcomes import Broken, Release
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.records import Cancelled, Ending, LeaseKey, Taken
from queasy.store.store import AsyncStore

__all__ = ["Link"]

log = logging.getLogger("queasy")


class Link:
    """A consumer in one queue. Answers and messages change `state`.

    `make_record` makes the record of a job that was taken. `changed` is called after a message
    arrived.
    """

    def __init__(
        self,
        state: ConsumerQueue,
        commands: QueueCommands,
        store: AsyncStore,
        base_id: str,
        make_record: Callable[[Job, Link], LeaseRecord],
        changed: Callable[[], None],
    ) -> None:
        self.state = state
        self.commands = commands
        self._store = store
        self._base_id = base_id
        self._make_record = make_record
        self._changed = changed
        self._requests = 0
        self._broken_in_a_row = 0
        self._connection: object | None = None
        self._problem: type[Exception] | None = None
        """Why the server did not answer the last call; None if it did."""
        self.leases: dict[LeaseKey, LeaseRecord] = {}
        """The leases that the program holds, or will."""
        self._unreported: dict[LeaseKey, Ending] = {}
        """Endings of leases that the server has not confirmed."""

    @property
    def client(self) -> str:
        """The id of the consumer in this queue: a new one after each time it was declared dead."""
        generation = self.state.generation
        return f"{self._base_id}-{generation}" if generation else self._base_id

    @property
    def _channel(self) -> str:
        return self.commands.keys.channel(self.client)

    # Joining and leaving

    async def join(self, record: bytes, lease: float) -> None:
        """Register with the queue."""
        sent = time.monotonic()
        self._store.listener.add_callback(self._channel, self._receive, lambda: bool(self.leases))
        if await self._store.run(self.commands.register(self.client, lease, record)) == "lost":
            self.handle_declared_dead()  # only if it was swept just now: the next try has a new id
            return
        self._requests = 0
        self.state.note_joined(sent)

    def handle_declared_dead(self) -> None:
        """The server has released all leases: another client evicted this one, or no bump arrived
        in time.
        """
        log.warning(
            "queue %r: the server has released %d job%s of consumer %s: it was evicted, or did "
            "not answer in time. It takes jobs again under a new id",
            self.state.name,
            self.state.held,
            "" if self.state.held == 1 else "s",
            self.client,
        )
        self._store.listener.remove_callback(self._channel)
        self._forget(declared_dead=True)

    def _forget(self, *, declared_dead: bool) -> None:
        lost, self.leases, self._unreported = list(self.leases.values()), {}, {}
        self.state.leave(time.monotonic(), declared_dead=declared_dead)
        for lease in lost:
            lease.note_lost()

    def abandon(self) -> None:
        """Stop listening. All leases are lost: nothing keeps them alive any more."""
        self._store.listener.remove_callback(self._channel)
        self._forget(declared_dead=False)

    async def leave(self) -> None:
        """Report what is not reported, release all other leases, and unregister."""
        self._store.listener.remove_callback(self._channel)
        try:
            await self._report()
            await run_operation(self._store, evict(self.commands, self.client, died=False))
        except QueasyError as problem:
            log.warning(
                "queue %r: the consumer left without an answer; its %d jobs go to other clients "
                "when its lease expires: %s",
                self.state.name,
                self.state.held,
                problem,
            )
        finally:
            self._forget(declared_dead=False)

    # Messages

    def _receive(self, message: bytes) -> None:
        """Handles a message of the server; an empty one says that messages may be lost."""
        kind, _, rest = message.partition(b":")
        if kind == b"cancel":
            token, _, id_ = rest.partition(b":")
            if token.isdigit():
                self.cancel(Cancelled(id_.decode("utf-8", "surrogateescape"), int(token)))
        elif kind == b"poll" and rest.isdigit():
            self.state.wake(time.monotonic() + int(rest) / 1000)
        else:
            if not message:
                self.state.mark_stale()
            self.state.wake()
        self._changed()

    def cancel(self, cancelled: Cancelled) -> None:
        lease = self.leases.get((cancelled.id, cancelled.token))
        if lease is not None:
            lease.note_cancel_request()

    async def forward_wake_up(self) -> None:
        """Have the server wake another client."""
        await self._store.run(forward_wake_up(self.commands))

    async def stand_down(self) -> None:
        """Have the server choose another client that polls in time."""
        await self._store.run(forward_wake_up(self.commands, self.client))

    async def _listen(self) -> bool:
        """Subscribe; whether messages arrive."""
        connection = await self._store.listener.subscribe(self._channel)
        if connection is not None and connection is not self._connection:
            if self._connection is not None:
                self.state.mark_stale()  # the server may have been restarted
            self._connection = connection
        return connection is not None

    # Taking

    async def poll(self, limit: int, beside: int, lease: float) -> list[LeaseRecord]:
        """Take up to `limit` jobs. If there is none, the server wakes this consumer when one is.

        A job that cannot be decoded is set aside as broken. After ten of these in a row the codec
        is most likely wrong: releases the rest, and raises UndecodablePayload.
        """
        listens = await self._listen()
        self._requests += 1
        command = self.commands.dequeue(
            self.client, lease=lease, limit=limit, request=str(self._requests),
            waiter=self.client if listens else "", waits=SAFETY_POLL_SECONDS, beside=beside,
        )  # fmt: skip
        state, client, sent = self.state, self.client, time.monotonic()
        taken = await self._until_answered(command)
        if client != self.client:  # declared dead meanwhile: the server has released the jobs
            return []
        state.note_skipped(taken.skipped)
        if taken.state in ("lost", "destroyed"):
            self.handle_declared_dead()
            return []
        if taken.state == "overtaken":
            state.mark_stale()
        if not taken.count:
            if taken.held > state.held:
                state.mark_stale()
            state.note_none_taken(time.monotonic(), taken.next_in, listens=listens)
            return []
        jobs = taken.jobs
        state.note_taken(sent, {(job.id, job.token): job.companions for job in jobs})
        return self._check(jobs)

    async def _until_answered(self, command: Command[Taken]) -> Taken:
        """Repeat a dequeue until the server answers it: a repeat brings the same jobs."""
        while True:
            try:
                taken = await self._store.run(command)
            except SERVER_AWAY as away:
                self.state.mark_stale()
                self.note_problem(away)
                await asyncio.sleep(REFUSED_RETRY_SECONDS)
            else:
                self._problem = None
                return taken

    def note_problem(self, problem: Exception) -> None:
        """Log why the server does not answer, once for each kind of problem."""
        if type(problem) is not self._problem:
            log.warning("consumer of queue %r: %s", self.state.name, problem)
        self._problem = type(problem)

    def _check(self, jobs: list[Job]) -> list[LeaseRecord]:
        """The jobs that can be decoded."""
        leases: list[LeaseRecord] = []
        for at, job in enumerate(jobs):
            problem = decoding_problem(job)
            if problem is None:
                self._broken_in_a_row = 0
                leases.append(self._make_record(job, self))
                continue
            self._report_later(Ending(job.id, job.token, Broken(problem)))
            self._broken_in_a_row += 1
            if self._broken_in_a_row == MAX_BROKEN_IN_A_ROW:
                self._broken_in_a_row = 0
                for rest in jobs[at + 1 :]:
                    self._report_later(Ending(rest.id, rest.token, Release()))
                for lease in leases:
                    self._report_later(Ending(*lease.key, Release()))
                raise wrong_codec(self.commands, MAX_BROKEN_IN_A_ROW, problem)
        self.leases |= {lease.key: lease for lease in leases}
        return leases

    # Ending and keeping leases

    def ended(self, lease: LeaseRecord) -> None:
        """The server has answered a call that ended this lease."""
        self._drop(lease.key)

    def report(self, lease: LeaseRecord, ending: Ending) -> None:
        """Have the consumer end this lease."""
        if self.leases.pop(lease.key, None) is not None:
            self._report_later(ending)

    def _report_later(self, ending: Ending) -> None:
        self._unreported[ending.id, ending.token] = ending
        self.state.mark_stale()

    def _drop(self, key: LeaseKey) -> None:
        self.leases.pop(key, None)
        self._unreported.pop(key, None)
        self.state.drop(key)

    async def bump(self, lease: float) -> None:
        """Extend all leases of this queue."""
        state, sent, client = self.state, time.monotonic(), self.client
        state.begin_bump(sent)
        confirmed = next_in = None
        try:
            bumped = await self._store.run(self.commands.bump([client], lease))
            ((word, cancels),) = bumped.clients
            if client == self.client and word == "ok":
                confirmed, next_in = lease, bumped.next_in
                self._problem = None
            elif client == self.client and state.joined:
                self.handle_declared_dead()
            for cancelled in cancels:
                self.cancel(cancelled)
        except QueasyError as problem:
            state.mark_stale()
            self.note_problem(problem)
        finally:
            state.end_bump(sent, confirmed, next_in)
        if next_in == 0:
            await run_operation(self._store, until_done(self.commands.sweep))

    async def _report(self) -> None:
        """Report the outcomes that the server does not know yet."""
        for key, ending in list(self._unreported.items()):
            try:
                await run_operation(self._store, settle_all(self.commands, [ending]))
            except InvalidInput as refused:  # `reconcile` releases the job
                log.warning("queue %r: job %r: %s", self.state.name, key[0], refused)
            if self._unreported.get(key) is ending:
                self._drop(key)

    async def reconcile(self) -> None:
        """Report what is not reported, and compare the leases here with those on the server.

        - Leases that only the server has are released: it forgot that they ended.
        - Leases that only this consumer has are lost: the server forgot that it gave them out.
        """
        state, client = self.state, self.client
        mark = state.begin_reconcile()
        await self._report()
        before = set(self.leases)
        ours = set(await run_operation(self._store, leases_of(self.commands, client)))
        if client != self.client:
            return
        for key in before - ours:
            lease = self.leases.get(key)
            if lease is not None and not lease.settling:
                self._drop(key)
                lease.note_lost()
        unknown = ours - set(state.companions)
        endings = [Ending(*key, Release()) for key in unknown]
        if await run_operation(self._store, settle_all(self.commands, endings)):
            log.warning(
                "queue %r: %d jobs that the consumer does not know were released: the server "
                "forgot that they had ended, or their leases were never received",
                state.name,
                len(endings),
            )
        state.end_reconcile(mark)
