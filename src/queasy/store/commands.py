"""Every server function as a command: the verbs of Queasy, on one page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal, get_args

from queasy.codec import Codec
from queasy.job import Job
from queasy.options import JobOptions
from queasy.outcomes import Finish
from queasy.store.command import Argument, Command
from queasy.store.job_reader import JobReader
from queasy.store.keys import QueueKeys
from queasy.store.library import NATIVE, Library
from queasy.store.records import (
    AuditPage,
    Bumped,
    Cancellation,
    Cancelled,
    ClientInfo,
    Counts,
    Dispatched,
    DispatchItem,
    DispatchStatus,
    Ending,
    LeaseKey,
    MadeDue,
    MadeDueStatus,
    Stat,
    Taken,
    decode_text,
    encode_id,
    options_on_wire,
    pack_finishes,
    pack_given,
)

__all__ = ["AUDIT_TALLIES", "ListState", "QueueCommands", "RecordKind", "version"]

RecordKind = Literal["failed", "broken"]
ListState = Literal["waiting", "due", "scheduled", "active", "blocked", "failed", "broken"]

# The first two arguments of a call that has no caller and number.
NO_NUMBER = ("", "")
# One string object for each status, however many jobs have it.
STATUSES: dict[bytes, DispatchStatus] = {word.encode(): word for word in get_args(DispatchStatus)}
# Flags of a dispatch that changes run_at only, and only of waiting jobs; and what its status means.
ONLY_RUN_AT_OF_WAITING = "0t02"
MADE_DUE: dict[bytes, MadeDueStatus] = {b"updated": "due", b"unchanged": "already_due"}
# The names of the audit's counts, in the order of TALLIES in lua/audit.lua.
AUDIT_TALLIES = (
    "waiting", "data", "info", "leases", "active", "blocked", "failed", "broken", "clients",
    "requests", "workers", "cancels", "calls", "waiters", "waiter_info",
)  # fmt: skip


class QueueCommands:
    """The commands of one queue. A later revision of the library may add to a reply: what a command
    does not know, it ignores. With its `limits`, dequeued jobs carry all options in force.
    """

    def __init__(
        self,
        keys: QueueKeys,
        codec: Codec | None = None,
        *,
        limits: JobOptions | None = None,
    ) -> None:
        self.keys = keys
        self._jobs = JobReader(keys.queue, keys.name, codec, limits)

    # Putting

    def dispatch(
        self, items: Sequence[DispatchItem], call: tuple[str, int] | None = None
    ) -> Command[list[Dispatched]]:
        """Put or update jobs. `call` is the caller's id and call number, if they are known."""
        ids = [item.id for item in items]
        args: list[Argument] = [*(NO_NUMBER if call is None else map(str, call))]
        for item in items:
            if item.when or item.flags or item.options:
                args[2:] = chain.from_iterable([each.args() for each in items])
                return self._dispatch("dispatch", ids, tuple(args))
            args += (item.id, item.payload)
        if not "".join(ids).isascii():
            args[2::2] = map(encode_id, ids)
        return self._dispatch("put", ids, tuple(args))

    def put(self, ids: Sequence[str], payloads: Sequence[bytes]) -> Command[list[Dispatched]]:
        """Put jobs that have nothing but an id in ASCII and data."""
        args = (*NO_NUMBER, *chain.from_iterable(zip(ids, payloads, strict=True)))
        return self._dispatch("put", ids, args)

    def _dispatch(
        self, function: str, ids: Sequence[str], args: tuple[Argument, ...]
    ) -> Command[list[Dispatched]]:
        alone = function == "put" and len(ids) == 1  # it may be handed off at once
        keys = self.keys.for_hand_off if alone else self.keys.for_dispatch
        return Command(function, keys, args, partial(_dispatched, ids), needs_number=args[0] == "")

    def run_now(self, id_: str) -> Command[MadeDue]:
        """Make a waiting job due now: a dispatch that changes only when a waiting job runs."""
        item = DispatchItem(id_, b"", flags=ONLY_RUN_AT_OF_WAITING)

        def read(reply: list[bytes]) -> MadeDue:
            return MadeDue(id_, MADE_DUE.get(reply[0]) or _word(reply[0]))

        args = (*NO_NUMBER, *item.args())
        return Command("dispatch", self.keys.for_dispatch, args, read, needs_number=True)

    def cancel(self, ids: Sequence[str], *, running: bool = False) -> Command[list[Cancellation]]:
        """Cancel waiting jobs and, if `running`, request the cancellation of runs."""

        def read(reply: list[Any]) -> list[Cancellation]:
            return [Cancellation(id_, _word(raw)) for id_, raw in zip(ids, reply, strict=True)]

        args = (*NO_NUMBER, _flag(running), *map(encode_id, ids))
        return Command("cancel", self.keys.all, args, read, needs_number=True)

    # Taking and ending

    def dequeue(
        self,
        client: str,
        *,
        lease: float,
        limit: int,
        request: str = "",
        waiter: str = "",
        waits: float = 0,
        endings: Sequence[Ending] = (),
        beside: int = 0,
        accepts_hand_off: bool = False,
    ) -> Command[Taken]:
        """End leases, sweep, and take due jobs, in one round trip. The process has `beside` other
        jobs: suspects that may not have as many companions are skipped.

        With `waits` (seconds), a client that gets no job is woken when there is one. If it
        `accepts_hand_off`, the server may lease a job to it and send that job instead: see
        `handed`. If it holds no job either, its lease is extended until well after its wait.
        """
        finishes, others = _divide(endings)
        packed = pack_finishes(finishes)
        if packed is None:
            finishes, others, packed = (), endings, b""
        args: list[Argument] = [
            *NO_NUMBER, client, _ms_text(lease), str(limit), request, waiter,
            str(round(waits * 1000)), str(len(others)),
        ]  # fmt: skip
        for ending in others:
            args.extend(ending.args())
        words = f"beside={beside} " if beside else ""
        args += (words + ("hand" if accepts_hand_off else ""), packed)

        def read(reply: list[Any]) -> Taken:
            state, next_in, settled, jobs, cancels, lost, held, skipped, *why = reply
            words = ["finished"] * len(finishes)
            for number in lost:
                words[number - 1] = "lost"
            if others:
                words = _in_order(endings, words, _words(settled))
            return Taken(
                state=_state(state, why),
                next_in=_seconds_until(next_in),
                settled=words,
                cancels=_cancels(cancels),
                count=self._jobs.count(jobs),
                held=held,
                skipped=None if skipped < 0 else skipped,
                read=partial(self._jobs.taken, jobs, client),
            )

        # A copy of this call that arrives after its lease has ended must not take another job. The
        # request of a worker prevents that; a client that is made for one lease has a number.
        needs_number = client.startswith("~") and not client.startswith("~~") and limit > 0
        keys = self.keys.with_fail_queue
        return Command("dequeue", keys, tuple(args), read, needs_number=needs_number)

    def handed(self, message: bytes, client: str) -> Job:
        """The job of a hand-off message, which was leased to this client."""
        return self._jobs.handed(message, client)

    def settle(self, endings: Sequence[Ending]) -> Command[list[str]]:
        """End leases; the result of each, or 'lost'."""
        args: list[Argument] = []
        for ending in endings:
            args.extend(ending.args())
        return Command(
            "settle", self.keys.with_fail_queue, tuple(args), _words,
            unclear_when_repeated=lambda words: "lost" in words,
        )  # fmt: skip

    def extend(self, id_: str, token: int, lease: float) -> Command[str]:
        """Extend a lease: ok, cancel (its cancellation was requested) or lost."""
        args = (encode_id(id_), str(token), _ms_text(lease))
        return Command("extend", self.keys.all, args, _word)

    # Clients

    def register(self, client: str, lease: float, worker: bytes = b"") -> Command[str]:
        """Create a client: ok, or lost if it was swept before."""
        args = (client, _ms_text(lease), worker)
        return Command("register", self.keys.all, args, _word)

    def bump(self, clients: Sequence[str], lease: float) -> Command[Bumped]:
        """Heartbeats: what the server says about each client, and when it needs the next call."""

        def read(reply: list[Any]) -> Bumped:
            return Bumped(
                [(_state(state, why), _cancels(cancels)) for state, cancels, _, *why in reply],
                next_in=_seconds_until(reply[0][2]),
            )

        args = (_ms_text(lease), *clients)
        return Command("bump", self.keys.with_fail_queue, args, read)

    def evict(self, client: str) -> Command[tuple[str, int]]:
        """End a client now, and release its jobs: gone, more (call again) or absent; and how many
        leases ended.
        """
        return Command(
            "evict",
            self.keys.with_fail_queue,
            (client,),
            lambda reply: (_word(reply[0]), reply[1]),
        )

    def sweep(self) -> Command[int]:
        """Return jobs of dead clients; call again while it answers more than 0."""
        return Command("sweep", self.keys.with_fail_queue, (), int)

    def leases(
        self, client: str, cursor: bytes, limit: int
    ) -> Command[tuple[list[LeaseKey], bytes]]:
        """A page of the leases of one client, and the cursor of the next page: see `jobs`."""

        def read(reply: list[Any]) -> tuple[list[LeaseKey], bytes]:
            flat, following, *_ = reply
            return _leases(flat), following

        return self._read_only("leases", read, client, cursor, str(limit))

    def clients(self, offset: int = 0, limit: int = 100) -> Command[list[ClientInfo]]:
        def read(reply: list[Any]) -> list[ClientInfo]:
            return [
                ClientInfo(decode_text(client), float(left) / 1000, leases, worker)
                for client, left, leases, worker, *_ in reply
            ]

        return self._read_only("clients", read, str(offset), str(limit))

    # The whole queue

    def configure(
        self,
        *,
        limits: JobOptions | None = None,
        fail_handler: bool | float | None = None,
        failed_limit: int | None = None,
        broken_limit: int | None = None,
        paused: bool | None = None,
    ) -> Command[str]:
        """Change settings of the whole queue; None leaves a setting as it is.

        A queue may have a fail handler for so many seconds from now: see `fail_handler_text` in
        lua/settings.lua.
        """
        if fail_handler is not None and not isinstance(fail_handler, bool):
            fail_handler = _milliseconds(fail_handler)
        given = {
            "limits": None if limits is None else options_on_wire(limits),
            "fail_handler": fail_handler,
            "failed_limit": failed_limit,
            "broken_limit": broken_limit,
            "paused": paused,
        }
        return Command("configure", self.keys.all, (pack_given(given),), _word)

    def requeue(self, kind: RecordKind, ids: Sequence[str]) -> Command[list[str]]:
        """Put failed or broken jobs back: requeued, exists, absent or later (call again)."""
        args = (*NO_NUMBER, kind, *map(encode_id, ids))
        return Command("requeue", self.keys.all, args, _words, needs_number=True)

    def drop(self, kind: RecordKind, ids: Sequence[str]) -> Command[int]:
        """Delete the records of failed or broken jobs; how many there were."""
        args = (kind, *map(encode_id, ids))
        return Command(
            "drop",
            self.keys.all,
            args,
            int,
            unclear_when_repeated=lambda dropped: dropped < len(ids),
        )

    def destroy(self, *, force: bool) -> Command[tuple[str, int, int]]:
        """Delete the queue: gone, or active (it is in use, and nothing was deleted); how many jobs
        are active, and how many clients are alive.
        """
        return Command(
            "destroy",
            self.keys.all,
            (_flag(force),),
            lambda reply: (_word(reply[0]), reply[1], reply[2] if reply[2:] else 0),
        )

    def trim(self, kind: RecordKind, keep: int) -> Command[int]:
        """Keep the newest records only; call again while it answers more than 0."""
        return Command("trim", self.keys.all, (kind, str(keep)), int)

    # Reading

    def counts(self) -> Command[Counts]:
        def read(reply: list[Any]) -> Counts:
            *numbers, paused, first, now = reply[:11]
            late = (float(now) - float(first)) / 1000 if first else 0.0
            late = late if math.isfinite(late) else 0.0  # a run_at that is not a number
            return Counts(*numbers, paused=bool(paused), latency=max(0.0, late))

        return self._read_only("counts", read)

    def get(self, id_: str) -> Command[list[Job]]:
        """One job for each state that the id is in."""

        def read(reply: list[Any]) -> list[Job]:
            return [self._jobs.row(row) for row in reply]

        return self._read_only("get", read, encode_id(id_))

    def jobs(self, state: ListState, cursor: bytes, limit: int) -> Command[tuple[list[Job], bytes]]:
        """A page, and the cursor of the next one. An empty cursor requests the first page; an empty
        one in the answer says that there is no further page.
        """

        def read(reply: list[Any]) -> tuple[list[Job], bytes]:
            return [self._jobs.row(row) for row in reply[0]], reply[1]

        return self._read_only("list", read, state, cursor, str(limit))

    def stats(self) -> Command[list[Stat]]:
        def read(reply: list[Any]) -> list[Stat]:
            return [
                Stat(_word(kind), int(minute) * 60.0 if minute else None, int(count))
                for kind, minute, count, *_ in reply
            ]

        return self._read_only("stats", read)

    def audit(self, offset: int, limit: int) -> Command[AuditPage]:
        """One page of the check of all invariants."""

        def read(reply: list[Any]) -> AuditPage:
            problems, tallies, sizes, *_ = reply
            return AuditPage([decode_text(problem) for problem in problems], tallies, sizes)

        args = (str(offset), str(limit))
        return Command("audit", self.keys.all, args, read, read_only=True)

    def _read_only(self, function: str, read: Any, *args: Argument) -> Command[Any]:
        return Command(function, self.keys.all, args, read, read_only=True)


def version(library: Library = NATIVE) -> Command[tuple[int, int]]:
    """The protocol and the revision of the library on the server."""
    return Command(
        "version", (), (), library.read_version, read_only=library.version_is_read_only,
        library=library,
    )  # fmt: skip


def _dispatched(ids: Sequence[str], reply: list[bytes]) -> list[Dispatched]:
    if len(ids) == len(reply) == reply.count(b"created"):
        return [Dispatched(id_, "created") for id_ in ids]
    return [
        Dispatched(id_, STATUSES.get(status) or _word(status))
        for id_, status in zip(ids, reply, strict=True)
    ]


def _in_order(endings: Sequence[Ending], of_finishes: list[str], of_others: list[str]) -> list[str]:
    """The results in the order of the endings. `of_finishes` is empty if the finishes were sent
    with the others.
    """
    finishes, others = iter(of_finishes), iter(of_others)
    return [
        next(finishes if of_finishes and isinstance(ending.outcome, Finish) else others)
        for ending in endings
    ]


def _divide(endings: Sequence[Ending]) -> tuple[Sequence[Ending], Sequence[Ending]]:
    """Those that finished, and the others."""
    finishes = [ending for ending in endings if isinstance(ending.outcome, Finish)]
    if len(finishes) == len(endings):
        return finishes, ()
    return finishes, [ending for ending in endings if not isinstance(ending.outcome, Finish)]


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _seconds_until(ms: int) -> float | None:
    """Seconds from milliseconds; None for -1, which means never."""
    return None if ms < 0 else ms / 1000


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _ms_text(seconds: float) -> str:
    return str(_milliseconds(seconds))


def _state(state: bytes, why: list[Any]) -> Any:
    """The state of a client: `destroyed` if it is lost because its queue was destroyed."""
    return "destroyed" if why[:1] == [b"destroyed"] else _word(state)


def _word(raw: bytes) -> Any:
    return raw.decode()


def _words(reply: list[bytes]) -> list[str]:
    return [raw.decode() for raw in reply]


def _leases(flat: list[bytes]) -> list[LeaseKey]:
    """The id and the token of each lease."""
    return [(decode_text(flat[at]), int(flat[at + 1])) for at in range(0, len(flat), 2)]


def _cancels(flat: list[bytes]) -> list[Cancelled]:
    return [Cancelled(id_, token) for id_, token in _leases(flat)]
