"""Takes all jobs from a worker, on every queue it serves, so that none runs twice at once.

A worker that is alive ends first, and its jobs return to their queues after that: its supervisor
kills the process, an inline worker interrupts its runs. Both begin again under a new id. Of a
worker that does not receive the order, because it is dead or cut off, the jobs return when its
lease is over: until then, nobody can know that it does not run them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from queasy.errors import EvictionFailed, InvalidInput
from queasy.operation import Operation, Publish, Sleep
from queasy.operations import evict, until_done
from queasy.store.commands import QueueCommands
from queasy.store.records import ClientInfo
from queasy.worker.control import Order
from queasy.worker.plan import Place
from queasy.worker.roster import ROWS_PER_CALL, WorkerInfo, roster

__all__ = ["Evicted", "check_worker", "evict_worker"]

LOOK_EVERY = 0.05
# An order may be lost, and a worker that has just started does not listen yet.
ORDER_EVERY = 1.0
# Silent workers are given this much longer than their lease, because the server gives them as much
# after an outage.
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The result of an eviction. It is true if there was such a worker."""

    workers: tuple[str, ...]
    """The ids of the workers that ended, or lost their jobs."""
    jobs: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many jobs of each queue they held when the order was sent. Those that did not finish
    before the worker ended are back in their queues."""

    def __bool__(self) -> bool:
        return bool(self.workers)


@dataclass(slots=True)
class _Target:
    """A worker to evict."""

    id: str
    group: str
    queues: dict[str, QueueCommands]
    held: dict[str, int] = field(default_factory=dict[str, int])
    """How many jobs of each queue it held when the order was sent."""
    received: bool = False
    """Whether its group received the order."""
    gone: bool = False

    def note_held(self, rows: dict[str, ClientInfo]) -> None:
        self.held = {name: row.leases for name, row in rows.items()}

    def note_order(self, received: int) -> None:
        self.received = self.received or received > 0

    def note_present(self, present: bool) -> None:
        self.gone = not present

    @property
    def takes_orders(self) -> bool:
        """Only a worker does: a program with pull leases learns it from the server."""
        return not self.id.startswith("~")


def check_worker(worker: WorkerInfo | str) -> WorkerInfo | str:
    if not isinstance(worker, (WorkerInfo, str)) or worker == "":  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            "worker: expected a WorkerInfo, or a group or id as `queasy workers` shows it, got "
            f"{worker!r}"
        )
    return worker


def evict_worker(
    place: Place, worker: WorkerInfo | str, queues: Collection[str]
) -> Operation[Evicted]:
    """Evicts one worker, or all workers of a group, found through `queues`."""
    chosen = [worker] if isinstance(worker, WorkerInfo) else []
    if isinstance(worker, str):
        found = yield from roster(place, queues)
        chosen = [one for one in found if worker in (one.id, one.group)]
    targets = [_Target(one.id, one.group, _commands(place, one.queues)) for one in chosen]
    yield from _end_all(place, targets)
    jobs: Counter[str] = Counter()
    for target in targets:
        jobs.update(target.held)
    ended = tuple(target.id for target in targets if target.gone)
    return Evicted(workers=ended, jobs=dict(+jobs))


def _commands(place: Place, names: Collection[str]) -> dict[str, QueueCommands]:
    found: dict[str, QueueCommands] = {}
    for name in names:
        fail = name.startswith("{")
        found[name] = place.commands(name[1:-6] if fail else name, fail=fail)
    return found


def _end_all(place: Place, targets: list[_Target]) -> Operation[None]:
    left, longest = list[_Target](), 0.0
    for target in targets:
        rows = yield from _rows(target)
        target.note_held(rows)
        longest = max([longest, *(row.expires_in for row in rows.values() if row.leases)])
        left += [target] if rows else []
    now = time.monotonic()
    give_up_at, order_at = now + longest + GRACE_SECONDS, now
    while left:
        if now >= order_at:
            order_at = now + ORDER_EVERY
            yield from _order(place, left)
        yield Sleep(LOOK_EVERY)
        now = time.monotonic()
        for target in list(left):
            rows = yield from _rows(target)
            target.note_present(bool(rows))
            holds = any(row.leases for row in rows.values())
            if now >= give_up_at and (holds or target.received):
                raise EvictionFailed(_why(target, sum(row.leases for row in rows.values())))
            # Nothing is taken from a dead worker that held nothing.
            if target.gone or now >= give_up_at:
                left.remove(target)


def _rows(target: _Target) -> Operation[dict[str, ClientInfo]]:
    """What the server says of the worker, for each queue with which it is registered."""
    found: dict[str, ClientInfo] = {}
    for name, commands in target.queues.items():
        row = yield from _row(commands, target.id)
        if row is not None:
            found[name] = row
    return found


def _row(commands: QueueCommands, client: str) -> Operation[ClientInfo | None]:
    offset = 0
    while page := (yield commands.clients(offset, ROWS_PER_CALL)):
        for row in page:
            if row.id == client:
                return row
        offset += ROWS_PER_CALL
    return None


def _order(place: Place, targets: list[_Target]) -> Operation[None]:
    """Orders the workers to end, and returns the jobs of those whose leases are over."""
    for target in targets:
        if target.takes_orders:
            order = msgspec.json.encode(Order("evict", client=target.id)).decode()
            target.note_order((yield Publish(place.group_control(target.group), order)))
        for commands in target.queues.values():
            if target.takes_orders:
                yield from until_done(commands.sweep)
            else:
                yield from evict(commands, target.id, died=False)


def _why(target: _Target, held: int) -> str:
    what = f"worker {target.id} of group {target.group!r} still has {held} jobs"
    if target.received:
        return (
            f"{what}: it received the order, and a run does not end. A worker inside an "
            "application cannot be killed: restart that application"
        )
    return (
        f"{what}: it is alive, and does not receive orders. Stop its process, or take its jobs "
        "with queue.evict(id): they may then run twice for a moment"
    )
