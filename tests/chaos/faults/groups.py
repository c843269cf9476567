"""Faults of a group of servers: failovers, and slots that move."""

from redis.crc import key_slot

from tests.announcements import SWITCH
from tests.chaos.history import now
from tests.chaos.system import PREFIX, System
from tests.chaos.workload import QUEUES
from tests.groups import Cluster, SentinelGroup

# Seconds after which a replica has received every write that its primary acknowledged.
REPLICATION_LAG = 1.0
# Seconds in which every client has left a primary that was replaced, on a busy machine.
REACTION = 1.0
FAILOVERS = {"failover": "requested", "kill": "primary killed", "pause": "primary frozen"}


def fail_over(system: System) -> None:
    """A replica becomes the primary; writes that it had not received are lost."""
    group = system.topology.group
    assert isinstance(group, SentinelGroup)
    began = now()
    kind = group.strike(system.random)
    # Clients leave the old primary at the switch. It goes on accepting writes for seconds.
    for switch in _switches(system, began):
        system.excused.append((min(began, switch) - REPLICATION_LAG, switch + REACTION))
    system.record(f"failover: {FAILOVERS.get(kind, kind)}", at=began, until=now())


def _switches(system: System, began: float) -> list[float]:
    """When the primary was replaced since `began`: the first announcement of each switch."""
    assert system.topology.announced is not None
    times: dict[str, float] = {}
    for at, channel, text in list(system.topology.announced.heard):
        if channel == SWITCH and at >= began:
            times.setdefault(text, at)
    return list(times.values())


def strike_cluster(system: System) -> None:
    """The slot of a queue moves to another server, or its server is replaced."""
    group = system.topology.group
    assert isinstance(group, Cluster)
    began = now()
    slot = key_slot(f"{PREFIX}:{{{system.random.choice(QUEUES)}}}".encode())
    kind = group.strike(slot, system.random)
    if kind == "kill":  # the only way that can lose writes
        system.excused.append((began - REPLICATION_LAG, now()))
    system.record(f"cluster: {kind.replace('_', ' ')}", at=began, until=now())
