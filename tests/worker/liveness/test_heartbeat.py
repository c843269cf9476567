"""The heartbeat: the leases that it extends."""

from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.worker.liveness.heartbeat import WorkerLeases
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import IDLE_LEASE


def test_idle_inline_worker_with_a_blocked_loop_is_not_kept_alive() -> None:
    """Bug: a job handed to it stayed leased while its loop was blocked and others were idle."""
    table, now, queue = InflightTable(2, 1), 1000.0, QueueCommands(QueueKeys("p", "q"))
    pulse = WorkerLeases("c", [queue] * 2, table, lambda: None, lambda *_: None, inline=True)
    table.set_idle_until(0, now + 1)
    table.loop_turned(now - 1)
    assert pulse.lease_due(0, now) == IDLE_LEASE
    table.loop_turned(now - 30)
    assert pulse.lease_due(0, now) is None
    table.add_held(1, 1)  # leases of a job are kept, however long the loop is blocked
    assert pulse.lease_due(0, now) == IDLE_LEASE
