"""Clusters and Sentinel groups, made of the real servers in `tests.servers`."""

import functools
import itertools
import random
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from redis.cluster import RedisCluster

from tests.access import access
from tests.servers import (
    HOST,
    Server,
    ServerKind,
    Setting,
    free_port,
    launch,
    start_replica,
    start_server,
    wait_until,
)

PRIMARY_NAME = "mymaster"

# Milliseconds. Unless sentinels ping well within down-after, they declare a primary dead as soon
# as they have elected it. With the other periods they discover each other and demote an old
# primary in one second instead of ten, and leave TILT mode, which a busy machine causes, in one
# second instead of thirty.
SENTINEL_HASTE = {
    "PING-PERIOD": 300,
    "INFO-PERIOD": 500,
    "PUBLISH-PERIOD": 200,
    "TILT-PERIOD": 1000,
}


# The default periods of a sentinel, and how long a primary may be silent. An old
# primary then stays a primary for about ten seconds after it was replaced.
SENTINEL_DEFAULTS = {
    "PING-PERIOD": 1000,
    "INFO-PERIOD": 10000,
    "PUBLISH-PERIOD": 2000,
    "TILT-PERIOD": 1000,
}
HASTY_DOWN_AFTER, DEFAULT_DOWN_AFTER = 500, 3000


class Cluster:
    def __init__(self, nodes: Sequence[Server], primaries: int) -> None:
        self.nodes = list(nodes)
        addresses = ",".join(node.address for node in nodes[:primaries])
        self.url = f"redis+cluster://{access.credentials}{addresses}"

    @property
    def running(self) -> list[Server]:
        return [node for node in self.nodes if node.running]

    def client(self, decode_responses: bool = True) -> RedisCluster:
        port = self.running[0].port
        return RedisCluster(host=HOST, port=port, decode_responses=decode_responses)

    def _itself(self, server: Server) -> dict[str, Any]:
        """The node's own entry: node_id, master_id ("-" if it is a primary), slots."""
        return server.call("CLUSTER NODES")[server.address]

    def primary_of(self, slot: int) -> Server:
        """The running server that claims the slot."""
        for server in self.running:
            if self._has(server, slot):
                return server
        raise LookupError(f"no running server of the cluster serves slot {slot}")

    def _has(self, server: Server, slot: int) -> bool:
        ranges = self._itself(server)["slots"]
        return any(int(bounds[0]) <= slot <= int(bounds[-1]) for bounds in ranges)

    def replicas_of(self, primary: Server) -> list[Server]:
        node_id = self._itself(primary)["node_id"]
        return [node for node in self.running if self._itself(node)["master_id"] == node_id]

    def migrate_slot(self, slot: int, to: Server) -> None:
        """Moves a slot and its keys while clients use it. Tests may call the steps one by one."""
        self.begin_migration(slot, to)
        while self.migrate_keys(slot, to):
            pass
        self.end_migration(slot, to)

    def begin_migration(self, slot: int, to: Server) -> None:
        """From now on the owner answers ASK for keys it lacks, TRYAGAIN if it has only some."""
        source = self.primary_of(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self._itself(source)["node_id"])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", self._itself(to)["node_id"])

    def migrate_keys(self, slot: int, to: Server, limit: int = 100) -> int:
        """Moves at most `limit` keys; returns how many it found."""
        source = self.primary_of(slot)
        keys: list[str] = source.call("CLUSTER", "GETKEYSINSLOT", slot, limit)
        if keys:
            source.call("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_migration(self, slot: int, to: Server) -> None:
        """Updates the new owner first: until then it would reject the clients redirected to it."""
        source, owner = self.primary_of(slot), self._itself(to)["node_id"]
        for server in [to, source, *(set(self.running) - {to, source})]:
            if self._itself(server)["master_id"] == "-":
                server.call("CLUSTER", "SETSLOT", slot, "NODE", owner)
        self.wait_until_settled()

    def migrate_atomically(self, slot: int, to: Server) -> None:
        """Moves a slot in one step: clients see only its end. Needs Valkey 9."""
        source = self.primary_of(slot)
        owner = self._itself(to)["node_id"]
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", owner)

        def done() -> bool:
            jobs = source.call("CLUSTER", "GETSLOTMIGRATIONS")
            states = [dict(zip(job[::2], job[1::2], strict=True))["state"] for job in jobs]
            assert "failed" not in states, jobs
            return self._has(to, slot)

        wait_until(done, f"slot {slot} is at {to.port}")
        self.wait_until_settled()

    def strike(self, slot: int, rng: random.Random) -> str:
        """A random fault at this slot; all servers are back afterwards. Returns its kind."""
        kinds = ["failover", "kill", "migration"]
        if self.nodes[0].kind is ServerKind.VALKEY:
            kinds.append("atomic_migration")
        kind = rng.choice(kinds)
        getattr(self, f"strike_by_{kind}")(slot, rng)
        return kind

    def strike_by_failover(self, slot: int, rng: random.Random) -> None:
        self.failover(self.primary_of(slot))

    def strike_by_kill(self, slot: int, rng: random.Random) -> None:
        """The old primary comes back as a replica, after another was elected."""
        old = self.kill_primary(slot)
        wait_until(lambda: self.serves(slot), f"another serves slot {slot}")
        time.sleep(rng.uniform(0, 1))
        old.start()
        self.wait_until_settled()

    def strike_by_migration(self, slot: int, rng: random.Random) -> None:
        """Moves a few keys at a time: in between, servers answer ASK or TRYAGAIN."""
        to = self.other_primary(slot, rng)
        self.begin_migration(slot, to)
        while self.migrate_keys(slot, to, rng.randint(1, 3)):
            time.sleep(rng.uniform(0, 0.1))
        self.end_migration(slot, to)

    def strike_by_atomic_migration(self, slot: int, rng: random.Random) -> None:
        self.migrate_atomically(slot, self.other_primary(slot, rng))

    def serves(self, slot: int) -> bool:
        with suppress(LookupError):
            return self.primary_of(slot).call("CLUSTER INFO")["cluster_state"] == "ok"
        return False

    def other_primary(self, slot: int, rng: random.Random) -> Server:
        """A primary the slot can move to; preferably one with replicas."""
        old = self.primary_of(slot)
        others = [s for s in self.running if s is not old and self._itself(s)["master_id"] == "-"]
        return rng.choice([s for s in others if self.replicas_of(s)] or others)

    def failover(self, primary: Server) -> Server:
        """Hands over to a replica without losing writes; returns the new primary."""
        replica = self.replicas_of(primary)[0]

        def given_up() -> int:
            return (primary.log + replica.log).count("Manual failover timed out")

        # Redis 7.0 may abort a failover within a second of the last one: request it again.
        while not primary.replicates(replica):
            before = given_up()
            replica.call("CLUSTER", "FAILOVER")
            wait_until(
                lambda: primary.replicates(replica) or given_up() > before,  # noqa: B023
                f"{replica.port} replaces {primary.port}",
            )
        self.wait_until_settled()
        return replica

    def kill_primary(self, slot: int) -> Server:
        """Returns the dead owner of the slot at once; `wait_until_settled` awaits the election."""
        primary = self.primary_of(slot)
        primary.kill()
        return primary

    def wait_until_settled(self) -> None:
        """Waits until the running servers serve every slot, are in sync, and agree on all roles."""
        wait_until(self._settled, "the cluster has settled")

    def _settled(self) -> bool:
        addresses = {server.address for server in self.running}
        views = [
            {
                address: (node["node_id"], node["master_id"], node["slots"])
                for address, node in server.call("CLUSTER NODES").items()
                if address in addresses or node["slots"]
            }
            for server in self.running
        ]
        roles = [server.call("ROLE") for server in self.running]
        return (
            all(view == views[0] for view in views)
            and views[0].keys() == addresses
            and all(role[0] == "master" or role[3] == "connected" for role in roles)
            and all(s.call("CLUSTER INFO")["cluster_state"] == "ok" for s in self.running)
        )


@contextmanager
def start_cluster(
    kind: ServerKind, primaries: int = 3, replicas: int = 0, spares: int = 0, **config: Setting
) -> Generator[Cluster]:
    """A cluster that serves every slot, with `replicas` for each primary; spares are primaries
    without slots.

    Takes two seconds: a new primary refuses to serve for that time, whatever the settings.
    """
    settings = {"cluster_enabled": True, "cluster_node_timeout": 2000, **config}
    with ExitStack() as stack:
        nodes = [
            launch(stack, kind, {"cluster_port": free_port(), **settings})
            for _ in range(primaries * (1 + replicas) + spares)
        ]
        for node in nodes:
            node.wait_until_ready()
        _form_cluster(nodes, primaries, primaries * replicas)
        cluster = Cluster(nodes, primaries)
        cluster.wait_until_settled()
        yield cluster


def _form_cluster(nodes: Sequence[Server], primaries: int, replicas: int) -> None:
    for epoch, node in enumerate(nodes, start=1):  # distinct epochs: no collisions to resolve
        node.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
    bounds = [16384 * index // primaries for index in range(primaries + 1)]
    for node, (first, end) in zip(nodes, itertools.pairwise(bounds), strict=False):
        node.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for one, other in itertools.combinations(nodes, 2):  # every pair: quicker than gossip
        one.call("CLUSTER", "MEET", HOST, other.port, other.config["cluster-port"])
    for index, node in enumerate(nodes[primaries : primaries + replicas]):
        replicate = functools.partial(
            node.call, "CLUSTER", "REPLICATE", nodes[index % primaries].call("CLUSTER", "MYID")
        )
        wait_until(replicate, f"{node.port} knows the primary it is to replicate")


class SentinelGroup:
    """A primary, its replicas, and the sentinels that watch them."""

    def __init__(self, servers: Sequence[Server], sentinels: Sequence[Server]) -> None:
        self.servers = list(servers)
        self.sentinels = list(sentinels)
        addresses = ",".join(sentinel.address for sentinel in sentinels)
        self.url = f"redis+sentinel://{access.credentials}{addresses}/{PRIMARY_NAME}"

    def _view(self, sentinel: Server) -> dict[str, Any]:
        return sentinel.call("SENTINEL MASTER", PRIMARY_NAME)

    @property
    def primary(self) -> Server:
        """The primary by the word of the first running sentinel, dead or alive."""
        port = self._view(next(s for s in self.sentinels if s.running))["port"]
        return next(server for server in self.servers if server.port == port)

    def hurry(self, hasty: bool = True) -> None:
        """Makes the sentinels act in fractions of a second, or at their normal pace."""
        periods = SENTINEL_HASTE if hasty else SENTINEL_DEFAULTS
        down_after = HASTY_DOWN_AFTER if hasty else DEFAULT_DOWN_AFTER
        for sentinel in self.sentinels:
            words = ("SENTINEL", "SET", PRIMARY_NAME, "down-after-milliseconds", down_after)
            if not hasty:
                sentinel.call(*words)
            sentinel.call("SENTINEL", "DEBUG", *itertools.chain(*periods.items()))
            if hasty:  # after the pings, which must come well within that time
                sentinel.call(*words)

    def request_failover(self) -> None:
        """Asks the first sentinel to replace the primary; does not wait."""
        self.sentinels[0].call("SENTINEL", "FAILOVER", PRIMARY_NAME)

    def failover(self) -> Server:
        """Makes the sentinels replace the primary by a replica; returns the new primary."""
        old, sentinel = self.primary, next(s for s in self.sentinels if s.running)

        def moved() -> bool:
            view = self._view(sentinel)
            if view["port"] == old.port and "failover_in_progress" not in view["flags"]:
                sentinel.call("SENTINEL", "FAILOVER", PRIMARY_NAME)  # again, if one was abandoned
            return view["port"] != old.port

        wait_until(moved, f"a replica replaces {old.port}")
        self.wait_until_settled()
        return self.primary

    def kill_primary(self) -> Server:
        """Returns the dead primary at once; `wait_until_settled` awaits the election."""
        primary = self.primary
        primary.kill()
        return primary

    def strike(self, rng: random.Random) -> str:
        """A random kind of failover; all servers are back afterwards. Returns its kind."""
        kind = rng.choice(("failover", "kill", "pause"))
        getattr(self, f"strike_by_{kind}")(rng)
        return kind

    def strike_by_failover(self, rng: random.Random) -> None:
        """Sentinel does not stop clients from writing: what is not replicated yet is lost."""
        self.failover()

    def strike_by_kill(self, rng: random.Random) -> None:
        """The old primary comes back empty, as a replica, after another was elected."""
        old = self.kill_primary()
        self.wait_until_settled()
        time.sleep(rng.uniform(0, 1))
        old.start()
        self.wait_until_settled()

    def strike_by_pause(self, rng: random.Random) -> None:
        """Two primaries for a moment: the old one resumes in its old role."""
        old = self.primary
        old.pause()
        self.wait_until_settled()
        time.sleep(rng.uniform(0, 1))
        old.resume()
        self.wait_until_settled()

    def wait_until_settled(self) -> None:
        """Waits until sentinels see all, and all replicas follow one live primary."""
        wait_until(self._settled, "sentinels and servers agree")

    def _settled(self) -> bool:
        primary = self.primary
        others = [s for s in self.servers if s.running and s is not primary]
        seen = {
            (view["port"], view["flags"], view["num-slaves"], view["num-other-sentinels"])
            for view in (self._view(sentinel) for sentinel in self.sentinels if sentinel.running)
        }
        return (
            seen == {(primary.port, "master", len(self.servers) - 1, len(self.sentinels) - 1)}
            and primary.call("ROLE")[0] == "master"
            and all(other.replicates(primary) for other in others)
        )


@contextmanager
def start_sentinel(
    kind: ServerKind,
    sentinels: int = 1,
    replicas: int = 1,
    *,
    periods: Mapping[str, int] = SENTINEL_HASTE,
    **config: Setting,
) -> Generator[SentinelGroup]:
    """A primary, its replicas, and sentinels of which a majority decides."""
    with ExitStack() as stack:
        primary = stack.enter_context(start_server(kind, **config))
        followers = [stack.enter_context(start_replica(primary, **config)) for _ in range(replicas)]
        settings = {
            "sentinel monitor": f"{PRIMARY_NAME} {HOST} {primary.port} {sentinels // 2 + 1}",
            "sentinel down-after-milliseconds": f"{PRIMARY_NAME} {HASTY_DOWN_AFTER}",
            "sentinel failover-timeout": f"{PRIMARY_NAME} 2000",
        }
        watchers = [launch(stack, kind, settings, "--sentinel") for _ in range(sentinels)]
        for watcher in watchers:
            watcher.wait_until_ready()
            watcher.call("SENTINEL", "DEBUG", *itertools.chain(*periods.items()))
        group = SentinelGroup([primary, *followers], watchers)
        group.wait_until_settled()
        yield group
