"""The workers of some queues: each with what it runs, and since when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime

from queasy.errors import InvalidQueue
from queasy.job import Job
from queasy.operation import Operation
from queasy.options import LATEST_EPOCH, check_name
from queasy.worker.plan import Place
from queasy.worker_record import WorkerRecord

__all__ = ["ROWS_PER_CALL", "WorkerInfo", "check_queue_names", "roster"]

ROWS_PER_CALL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker: a process with an event loop that runs jobs. Or one consumer."""

    id: str
    group: str
    """The same for all workers of one supervisor; `queasy serve` and `unserve` accept it. A
    consumer is a group of its own, which takes no orders."""
    host: str
    pid: int
    supervisor: int
    """The process id of its supervisor; 0 for a worker that runs inside an application."""
    version: str
    started_at: datetime
    capacity: int
    lease: float
    """It counts as dead after this many seconds of silence."""
    queues: tuple[str, ...]
    """The queues it serves now."""
    load: float
    """The part of its capacity that is in use, from 0 to 1."""
    jobs: tuple[Job, ...]
    """The jobs it holds; `leased_at` says since when."""


@dataclass(slots=True)
class _Seen:
    """What was read of one worker so far."""

    record: WorkerRecord
    queues: list[str] = field(default_factory=list[str])
    jobs: list[Job] = field(default_factory=list[Job])


def roster(place: Place, queues: Collection[str]) -> Operation[list[WorkerInfo]]:
    """The workers of these queues, and of all other queues that those workers serve."""
    seen: dict[str, _Seen] = {}
    read: set[str] = set()
    wanted = {name for queue in check_queue_names(queues) for name in (queue, f"{{{queue}}}-fail")}
    while todo := sorted(wanted - read):
        for name in todo:
            read.add(name)
            yield from _read_queue(place, name, seen)
        named = {name for one in seen.values() for name in one.record.queues}
        wanted |= set(filter(_is_queue, named))
    return [_info(id_, one) for id_, one in sorted(seen.items(), key=_order)]


def check_queue_names(queues: Collection[str]) -> list[str]:
    """The names of queues that a caller gave. Raises InvalidQueue if they are not."""
    if isinstance(queues, str) or not isinstance(queues, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQueue(f"queues: expected names in a list, got {queues!r}")
    return [check_name(queue) for queue in queues]


def _order(item: tuple[str, _Seen]) -> tuple[str, str, int]:
    record = item[1].record
    return record.host, record.group, record.pid


def _is_queue(name: str) -> bool:
    """Any client may have written a record, so a name in it need not be one of a queue."""
    fail = name.startswith("{") and name.endswith("}-fail")
    try:
        check_name(name[1:-6] if fail else name)
    except InvalidQueue:
        return False
    return True


def _read_queue(place: Place, name: str, seen: dict[str, _Seen]) -> Operation[None]:
    """Adds the workers of one queue, and its jobs that they hold, to `seen`."""
    fail = name.endswith("}-fail")
    commands = place.commands(name[1:-6] if fail else name, fail=fail)
    holders: set[str] = set()
    offset = 0
    while page := (yield commands.clients(offset, ROWS_PER_CALL)):
        for client in page:
            record = WorkerRecord.read(client.worker)
            if record is not None and client.expires_in > 0:  # else dead, but not yet swept
                seen.setdefault(client.id, _Seen(record)).queues.append(name)
                holders |= {client.id} if client.leases else set()
        offset += ROWS_PER_CALL
    cursor = b""
    while holders:
        jobs, cursor = yield commands.jobs("active", cursor, ROWS_PER_CALL)
        for job in jobs:
            if job.client in holders:
                seen[job.client].jobs.append(job)
        if not cursor:
            return


def _info(id_: str, one: _Seen) -> WorkerInfo:
    record = one.record
    used = sum(record.queues.get(job.queue, 0) for job in one.jobs)
    return WorkerInfo(
        id=id_,
        group=record.group,
        host=record.host,
        pid=record.pid,
        supervisor=record.supervisor,
        version=record.version,
        started_at=datetime.fromtimestamp(min(max(record.started, 0.0), LATEST_EPOCH - 1), UTC),
        capacity=record.capacity,
        lease=record.lease,
        queues=tuple(one.queues),
        load=min(1.0, used / max(1, record.capacity)),
        jobs=tuple(one.jobs),
    )
