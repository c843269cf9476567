"""The scenes: on what the crew works, and what is done to them there."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from queasy import SyncClient
from tests.chaos import faults, operators
from tests.chaos.crew import Crew, Role, Size
from tests.chaos.history import Pen, now
from tests.chaos.load import QUEUES
from tests.chaos.stages import MakeStage, alone, cluster, sentinel
from tests.chaos.world import PREFIX, World
from tests.proxy.program import start_proxy
from tests.servers import ServerKind, Setting

Faults = Mapping[Callable[[World], None], float]

# So long before the last fault nobody asks for long jobs any more.
CALM = 10.0

PROCESSES: Faults = {
    faults.kill_child: 6,
    faults.kill_worker: 2,
    faults.kill_producer: 2,
    faults.kill_consumer: 2,
    faults.stop_worker: 0.5,
    faults.freeze_child: 1,
    faults.freeze_supervisor: 0.5,
    faults.freeze_worker: 0.5,
    faults.freeze_other: 1,
}
OPERATORS: Faults = {
    operators.pause_queue: 0.7,
    operators.unserve_queue: 0.7,
    operators.requeue_failed: 1,
}
ERRORS: Faults = {
    faults.flush_library: 1,
    faults.cut_connections: 1,
    faults.fill_memory: 1,
    faults.make_read_only: 1,
    faults.keep_busy: 1,
}
NETWORK: Faults = {
    faults.harass: 3,
    faults.stall_network: 1,
    faults.cut_network: 1,
    faults.deafen_network: 1,
}
PARTITION: Faults = {faults.partition: 3, faults.kill_child: 1}
FAILOVER: Faults = {faults.fail_over: 2, faults.kill_child: 1}
CLUSTER: Faults = {faults.strike_cluster: 2, faults.kill_child: 1}


@dataclass(frozen=True)
class Scene:
    name: str
    about: str
    faults: Faults
    rate: float
    """Of faults, a second."""
    settings: Mapping[str, Setting] = field(default_factory=lambda: {"appendfsync": "always"})
    stage: MakeStage = alone
    durability: str = "ack"
    by_network: frozenset[Role] = frozenset()
    """Who reaches the server through a network that can be harmed."""
    size: Size = field(default_factory=Size)
    long: float = 0.0
    """Jobs a second that take longer than a lease. Those who are killed with their worker run
    alone the next time: where kills are many, a few of them hold everything up.
    """

    def hastened(self, jobs: float, faults: float) -> "Scene":
        """With so many times the jobs, and so many times the faults; and as many times fewer long
        jobs, for of those hardly any ends before it is all over.
        """
        size = replace(self.size, rate=self.size.rate * jobs)
        return replace(self, size=size, rate=self.rate * faults, long=self.long / faults)


EVERYBODY: frozenset[Role] = frozenset(("worker", "producer", "consumer"))

SCENES = {
    scene.name: scene
    for scene in (
        Scene("processes", "kills and freezes of processes", {**PROCESSES, **OPERATORS}, 1.7,
              long=0.1),
        Scene(
            "server",
            "kills of the server, whose file is synced at every write",
            {**PROCESSES, faults.kill_server: 8, faults.freeze_server: 1},
            0.7,
        ),
        Scene(
            "power",
            "power cuts of a server whose file is synced every second: its end is missing",
            {faults.cut_power: 2, faults.kill_child: 1},
            0.4,
            {"appendfsync": "everysec"},
        ),
        Scene("network", "cuts, stalls and silence of the network", NETWORK, 0.5,
              by_network=EVERYBODY),
        Scene("partition", "one worker is cut off for longer than its leases last", PARTITION, 0.2,
              by_network=frozenset(("worker",)), size=Size(workers=3), long=1.0),
        Scene("errors", "what a server answers when it will not", ERRORS, 0.7),
        Scene("sentinel", "failovers; dispatches are answered at once", FAILOVER, 0.3,
              stage=sentinel, size=Size(rate=60)),
        Scene("replicated", "failovers; dispatches are answered when a replica has them",
              FAILOVER, 0.3, stage=sentinel, durability="replicated", size=Size(rate=60)),
        Scene("cluster", "failovers, and slots that move", CLUSTER, 0.3, stage=cluster,
              size=Size(rate=60)),
        Scene(
            "everything",
            "all of it, mixed",
            {**PROCESSES, **dict.fromkeys({**ERRORS, **NETWORK}, 0.5), faults.kill_server: 2,
             faults.freeze_server: 0.1, faults.partition: 0.2, operators.pause_queue: 0.3,
             operators.requeue_failed: 0.3},
            2.0,
            by_network=frozenset(("worker", "consumer")),
            long=0.1,
        ),
    )
}  # fmt: skip


@contextmanager
def play(
    scene: Scene, kind: ServerKind, folder: Path, seed: str, seconds: float
) -> Generator[World]:
    """The world of a scene, at work; faults are to be done for so long."""
    random = Random(seed)
    with ExitStack() as stack:
        stage = scene.stage(stack, kind, {"appendonly": True, **scene.settings})
        # One for each worker, and one for all others.
        networks = [
            stack.enter_context(start_proxy(stage.server.port, random.randrange(10**9)))
            for _ in range(scene.size.workers + 1 if scene.by_network else 0)
        ]
        with SyncClient(stage.url, prefix=PREFIX) as client:
            for name in QUEUES:
                client.queue(name).configure(fail_handler=True, failed_limit=1_000_000)
        ways = [network.url for network in networks]
        urls: dict[Role, list[str]] = {
            role: [stage.url] if role not in scene.by_network
            else ways[:-1] if role == "worker" else ways[-1:]
            for role in EVERYBODY
        }  # fmt: skip
        environment = {
            "CHAOS_DURABILITY": scene.durability,
            "CHAOS_LONG": f"{scene.long / scene.size.producers} {now() + seconds - CALM}",
        }
        crew = Crew(urls, folder, random, scene.size, environment)
        stack.callback(crew.end)
        yield World(random, folder, stage, crew, Pen(folder, "faults"), networks)
