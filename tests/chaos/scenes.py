"""The scenes: a topology, a fleet of processes, and the faults that are injected."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from queasy import SyncClient
from tests.chaos.faults import groups, network, operators, processes, server
from tests.chaos.fleet import Fleet, Role, Size
from tests.chaos.history import HistoryWriter, now
from tests.chaos.system import PREFIX, InjectFault, System
from tests.chaos.topologies import StartTopology, cluster, sentinel, single
from tests.chaos.workload import QUEUES
from tests.proxy.program import start_proxy
from tests.servers import ServerKind, Setting

Faults = Mapping[InjectFault, float]
"""Each fault with its relative frequency."""

# Long jobs are not dispatched in the last seconds of the faults.
NO_LONG_JOBS = 10.0

PROCESSES: Faults = {
    processes.kill_worker_process: 6,
    processes.kill_supervisor: 1,
    processes.kill_host: 1,
    processes.kill_producer: 2,
    processes.kill_consumer: 2,
    processes.stop_supervisor: 0.5,
    processes.freeze_worker_process: 1,
    processes.freeze_supervisor: 0.5,
    processes.freeze_supervisor_and_workers: 0.5,
    processes.freeze_producer_or_consumer: 1,
}
OPERATORS: Faults = {
    operators.pause_queue: 0.7,
    operators.unserve_queue: 0.7,
    operators.requeue_failed_jobs: 1,
}
ERRORS: Faults = {
    server.flush_library: 1,
    server.kill_connections: 1,
    server.fill_memory: 1,
    server.make_read_only: 1,
    server.keep_busy: 1,
}
NETWORK: Faults = {
    network.cut_commands: 3,
    network.stall_network: 1,
    network.reset_network: 1,
    network.silence_network: 1,
}
PARTITION: Faults = {network.partition: 3, processes.kill_worker_process: 1}
PATHS: Faults = {network.fail_path: 1}
FLAPPING: Faults = {server.flap_server: 1}
FAILOVER: Faults = {groups.fail_over: 2, processes.kill_worker_process: 1}
CLUSTER: Faults = {groups.strike_cluster: 2, processes.kill_worker_process: 1}


@dataclass(frozen=True)
class Scene:
    name: str
    about: str
    faults: Faults
    rate: float
    """Faults per second."""
    settings: Mapping[str, Setting] = field(default_factory=lambda: {"appendfsync": "always"})
    start_topology: StartTopology = single
    durability: str = "ack"
    proxied: frozenset[Role] = frozenset()
    """Roles that reach the server through proxies, which can inject network faults."""
    size: Size = field(default_factory=Size)
    long: float = 0.0
    """Jobs per second that take longer than a lease. A job that was killed with its worker runs
    alone the next time: where kills are frequent, a few long jobs delay all others.
    """
    far_delay: float = 0.0
    """Seconds; half of the delayed jobs have this delay. With Sentinel only these show what an old
    primary lost: others may run there before it is demoted.
    """
    systems: int = 1
    """How many systems, with a server each, share the faults if these are counted: one server can
    be away only once at a time.
    """

    def scaled(self, jobs: float, faults: float) -> "Scene":
        """The scene with more jobs and more faults.

        It has fewer long jobs by the factor of the faults, because hardly any of them would end.
        """
        size = replace(self.size, rate=self.size.rate * jobs)
        return replace(self, size=size, rate=self.rate * faults, long=self.long / faults)


ALL_ROLES: frozenset[Role] = frozenset(("worker", "producer", "consumer"))

SCENES = {
    scene.name: scene
    for scene in (
        Scene("processes", "processes are killed and frozen", {**PROCESSES, **OPERATORS}, 1.7,
              long=0.1),
        Scene(
            "server",
            "the server is killed; it syncs its file at every write",
            {**PROCESSES, server.kill_server: 8, server.freeze_server: 1},
            0.7,
        ),
        Scene(
            "power",
            "power failures of a server that syncs its file every second: its end is lost",
            {server.power_failure: 2, processes.kill_worker_process: 1},
            0.4,
            {"appendfsync": "everysec"},
        ),
        Scene("network", "the network cuts connections, stalls, and does not answer", NETWORK, 0.5,
              proxied=ALL_ROLES),
        Scene("partition", "one worker loses the server for longer than its leases last", PARTITION,
              0.2, proxied=frozenset(("worker",)), size=Size(workers=3), long=1.0),
        Scene("paths", "each worker's own path fails for 5 to 60 s, while others reach the server",
              PATHS, 1.0, proxied=frozenset(("worker",)), size=Size(6, 1, 1, rate=20), long=0.3),
        Scene("flapping", "the server is away for up to 16 s, back for moments, and away again",
              FLAPPING, 1.0, size=Size(3, 1, 1, rate=20), long=1.0, systems=2),
        Scene("errors", "the server answers with errors", ERRORS, 0.7),
        Scene("sentinel", "failovers; dispatches are answered at once", FAILOVER, 0.3,
              start_topology=sentinel, size=Size(rate=60), far_delay=25.0),
        Scene("replicated", "failovers; dispatches are answered when a replica has them",
              FAILOVER, 0.3, start_topology=sentinel, durability="replicated", size=Size(rate=60),
              far_delay=25.0),
        Scene("cluster", "failovers, and slots that move", CLUSTER, 0.3, start_topology=cluster,
              size=Size(rate=60)),
        Scene(
            "everything",
            "faults of processes, server, network and operators, mixed",
            {**PROCESSES, **dict.fromkeys({**ERRORS, **NETWORK}, 0.5), server.kill_server: 2,
             server.freeze_server: 0.1, network.partition: 0.2, operators.pause_queue: 0.3,
             operators.requeue_failed_jobs: 0.3},
            2.0,
            proxied=frozenset(("worker", "consumer")),
            long=0.1,
        ),
    )
}  # fmt: skip


@contextmanager
def start(
    scene: Scene, kind: ServerKind, folder: Path, seed: str, seconds: float
) -> Generator[System]:
    """The running system of a scene. `seconds` is for how long faults will be injected, at most."""
    random = Random(seed)
    with ExitStack() as stack:
        topology = scene.start_topology(stack, kind, {"appendonly": True, **scene.settings})
        # One for each worker, and one for all other processes.
        proxies = [
            stack.enter_context(start_proxy(topology.server.port, random.randrange(10**9)))
            for _ in range(scene.size.workers + 1 if scene.proxied else 0)
        ]
        with SyncClient(topology.url, prefix=PREFIX) as client:
            for name in QUEUES:
                client.queue(name).configure(fail_handler=True, failed_limit=1_000_000)
        proxy_urls = [proxy.url for proxy in proxies]
        urls: dict[Role, list[str]] = {
            role: [topology.url] if role not in scene.proxied
            else proxy_urls[:-1] if role == "worker" else proxy_urls[-1:]
            for role in ALL_ROLES
        }  # fmt: skip
        environment = {
            "CHAOS_DURABILITY": scene.durability,
            "CHAOS_FAR_DELAY": str(scene.far_delay),
            "CHAOS_LONG": f"{scene.long / scene.size.producers} {now() + seconds - NO_LONG_JOBS}",
        }
        fleet = Fleet(urls, folder, random, scene.size, environment)
        stack.callback(fleet.kill)
        write = HistoryWriter(folder, "faults")
        yield System(random, folder, topology, fleet, write, proxies, scene.name)
