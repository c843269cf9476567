"""The heartbeat keeps the leases of a worker that runs, and of no other."""

from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.worker.liveness.heartbeat import Pulse
from queasy.worker.liveness.inflight_table import InflightTable
from queasy.worker.plan import IDLE_LEASE


def test_idle_inline_worker_with_a_blocked_loop_is_not_kept_alive() -> None:
    """A job that it was handed stayed with it for as long as that lasted, with others idle."""
    table, now, queue = InflightTable(2, 1), 1000.0, QueueCommands(QueueKeys("p", "q"))
    pulse = Pulse("c", [queue] * 2, table, lambda: None, lambda index, cancelled: None, inline=True)
    table.rest(0, now + 1)
    table.beat(now - 1)
    assert pulse.needs(0, now) == IDLE_LEASE
    table.beat(now - 30)
    assert pulse.needs(0, now) is None
    table.attend(1, 1)  # what it runs is its own, however long it takes: it must not be lost
    assert pulse.needs(0, now) == IDLE_LEASE
