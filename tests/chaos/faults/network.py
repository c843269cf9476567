"""Faults of the network, injected by proxies between the processes and the server."""

from collections.abc import Sequence

from tests.chaos.history import now
from tests.chaos.system import System
from tests.proxy.program import ProxyProgram

# A path may stay failed for this many seconds after the last fault was injected.
AFTER_THE_LAST = 10.0


def _choose(system: System) -> Sequence[ProxyProgram]:
    """All proxies, or one of them."""
    return system.random.choice((system.proxies, [system.random.choice(system.proxies)]))


def _order(proxies: Sequence[ProxyProgram], order: str) -> None:
    for proxy in proxies:
        proxy.tell(order)


def stall_network(system: System) -> None:
    """Nothing passes for a while; then everything does."""
    seconds = system.random.choice((0.1, 1.0, 4.0, system.random.uniform(0, 15)))
    _order(_choose(system), f"stall {seconds:.2f}")
    system.record("stall network", until=now() + seconds)


def reset_network(system: System) -> None:
    """Every connection is closed."""
    _order(_choose(system), "cut all")
    system.record("reset network")


def silence_network(system: System) -> None:
    """Connections are accepted, but commands are never answered, for a while."""
    seconds = system.random.uniform(0.5, 5)
    _order(_choose(system), f"deaf {seconds:.2f}")
    system.record("unresponsive network", until=now() + seconds)


def cut_commands(system: System) -> None:
    """Connections are closed in the middle of commands and answers, at random, for a while."""
    proxies = _choose(system)
    _order(proxies, f"harass {system.random.choice((0.002, 0.01, 0.05))}")
    began = now()

    def stop() -> None:
        _order(proxies, "calm")
        system.record("cut commands", at=began, until=now())

    system.later(system.random.uniform(1, 4), stop)


# In seconds. The supervisor freezes its processes after eleven.
SHORTEST_PATH_FAILURE, LONGEST_PATH_FAILURE = 5.0, 60.0
PATH_FAILURES = {
    "refuse": "connections refused",
    "reset": "connections reset",
    "deaf": "no answer",
    "loading": "LOADING",
    "clusterdown": "CLUSTERDOWN",
}


def fail_path(system: System) -> None:
    """One worker's own path to the server fails, while at least one worker reaches the server."""
    indexes = [worker.index for worker in system.fleet.of("worker")]
    intact = [index for index in indexes if now() >= system.path_fails_until.get(index, 0.0)]
    if len(intact) < 2:
        return
    index, order = system.random.choice(intact), system.random.choice([*PATH_FAILURES])
    drawn = system.random.choice((6.0, 12.0, 14.0, system.random.uniform(5, LONGEST_PATH_FAILURE)))
    left = max(SHORTEST_PATH_FAILURE, system.inject_until + AFTER_THE_LAST - now())
    seconds = min(drawn, left)
    began = now()
    # The pause after it gives the worker time to take jobs again.
    system.path_fails_until[index] = began + seconds + system.random.uniform(2, 6)
    system.proxies[index].tell(f"{order} {seconds:.2f}")
    system.record(f"path: {PATH_FAILURES[order]}", at=began, until=began + seconds)


def partition(system: System) -> None:
    """One supervisor cannot reach the server for longer than its leases last; all others can."""
    if now() < system.partitioned_until:
        return
    # The pause before gives the supervisor time to take jobs.
    pause, seconds = system.random.uniform(0, 8), system.random.uniform(15, 30)
    index = system.random.choice([worker.index for worker in system.fleet.of("worker")])
    system.partitioned_until = now() + pause + seconds

    def begin() -> None:
        system.proxies[index].tell(f"stall {seconds:.2f}")
        system.record("partition", until=now() + seconds)

    system.later(pause, begin)
