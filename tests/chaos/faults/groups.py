"""Faults of a group of servers: failovers, and slots that move."""

from redis.crc import key_slot

from tests.chaos.history import now
from tests.chaos.system import PREFIX, System
from tests.chaos.workload import QUEUES
from tests.groups import Cluster, SentinelGroup

# Seconds after which a replica has received every write that its primary acknowledged.
REPLICATION_LAG = 1.0
FAILOVERS = {"failover": "requested", "kill": "primary killed", "pause": "primary frozen"}


def fail_over(system: System) -> None:
    """A replica becomes the primary; writes that it had not received are lost."""
    group = system.topology.group
    assert isinstance(group, SentinelGroup)
    began = now()
    kind = group.strike(system.random)
    system.excused.append((began - REPLICATION_LAG, now()))
    system.record(f"failover: {FAILOVERS.get(kind, kind)}", at=began, until=now())


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
