"""Faults of the network, injected by proxies between the processes and the server."""

from collections.abc import Sequence

from tests.chaos.history import now
from tests.chaos.system import System
from tests.proxy.program import ProxyProgram


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
