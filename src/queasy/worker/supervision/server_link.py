"""What a supervisor does with the server, for its children.

1. It opens the connection when the first child says where the server is.
2. It keeps the leases of all children alive, however busy they are.
3. It receives orders to serve or unserve a queue.
4. It gives the jobs of a child that is gone back to their queues, and those that a blocked child
   cannot begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from queasy.store.records import Cancelled
from queasy.store.store import AsyncStore
from queasy.worker.control import Control, Order
from queasy.worker.events import event
from queasy.worker.lease_times import LeaseTimes
from queasy.worker.liveness.heartbeat import Heartbeat, WorkerLeases
from queasy.worker.supervision.child_process import ChildProcess
from queasy.worker.supervision.give_back import GiveBack
from queasy.worker.supervision.messages import Planned, Rejoin
from queasy.worker.supervision.recovery import GoneChild, recover_jobs

__all__ = ["ServerLink"]


class ServerLink:
    """Owns the supervisor's store, heartbeat and control channel.

    It calls `carry_out` for each order, and `run_task` to run the heartbeat and to give jobs back.
    """

    def __init__(
        self,
        group: str,
        times: LeaseTimes,
        carry_out: Callable[[Order], Awaitable[None]],
        run_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._group = group
        self._times = times
        self._carry_out = carry_out
        self._run_task = run_task
        self._opened: tuple[AsyncStore, Heartbeat, Control] | None = None
        self._give_back: GiveBack | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last heartbeat failed."""
        return self._opened is not None and self._opened[1].is_failing

    def add(self, child: ChildProcess, planned: Planned) -> None:
        """Keeps the leases of this child from now on, and receives orders for its queues."""
        place = planned.place
        _, heartbeat, control = self._open(planned)
        control.listen(place.controls(self._group, {name for name, _ in planned.queues}))
        queues = [place.commands(name, fail=fail) for name, fail in planned.queues]

        def cancel(queue: int, cancelled: Cancelled) -> None:
            child.cancel((queue, cancelled.id, cancelled.token))

        heartbeat.add(
            WorkerLeases(
                child.client,
                queues,
                child.table,
                partial(_lost, child),
                cancel,
                on_refused=partial(_refused, child),
                on_destroyed=lambda queue: child.send(Rejoin(queue)),
            )
        )

    def _open(self, planned: Planned) -> tuple[AsyncStore, Heartbeat, Control]:
        if self._opened is None:
            store = planned.place.store(timeout=self._times.call_timeout)
            heartbeat = Heartbeat(store, self._times)
            self._opened = store, heartbeat, Control(store, self._carry_out)
            self._give_back = GiveBack(store, self._run_task)
            self._run_task(heartbeat.run())
        return self._opened

    def observe(self, child: ChildProcess, now: float) -> None:
        """Gives back what a child has taken and cannot begin, if its event loop is blocked."""
        if self._give_back is not None:
            self._give_back.observe(child, now)

    def forget(self, child: ChildProcess) -> None:
        """Stops keeping the leases of a child that is gone."""
        if self._give_back is not None:
            self._give_back.forget(child)
        if self._opened is not None:
            self._opened[1].forget(child.client)

    async def recover(self, child: ChildProcess) -> None:
        """Gives the jobs of a child that is gone back to their queues, and logs how many."""
        state, planned = child.state, child.state.planned
        if self._opened is None or planned is None:
            return  # it never got as far as taking jobs
        if state.announced_exit and not state.has_served:
            return
        returned = await recover_jobs(
            self._opened[0],
            GoneChild(
                client=child.client,
                planned=planned,
                runs=child.table.entries(unreported=True),
                runs_are_suspect=state.runs_are_suspect,
                timed_out=state.timed_out,
                lease=self._times.lease,
                held=frozenset(filter(child.table.held_of, range(len(planned.queues)))),
            ),
        )
        if returned:
            event("jobs_returned", client=child.client, jobs=returned)

    async def close(self) -> None:
        """Closes the connection; the heartbeat must have ended."""
        if self._opened is not None:
            store, _, control = self._opened
            await control.close()
            await store.close()


def _lost(child: ChildProcess) -> None:
    """Kills a child that the server has declared dead: its jobs run elsewhere, too."""
    event("worker_declared_dead", logging.WARNING, pid=child.pid, client=child.client,
          why="the server declared it dead; its jobs run elsewhere")  # fmt: skip
    child.kill("lost")


def _refused(child: ChildProcess) -> None:
    """Kills a child with runs of a damaged queue: if it stayed frozen, other queues would wait."""
    if child.state.kill_reason is None:
        event("process_killing", logging.WARNING, pid=child.pid, client=child.client, why="lost")
        child.kill("lost")
