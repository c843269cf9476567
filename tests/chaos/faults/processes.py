"""Faults of processes: SIGKILL, SIGTERM, SIGSTOP."""

import os
import signal
from contextlib import suppress

from tests.chaos.fleet import Member, Role
from tests.chaos.history import now
from tests.chaos.system import System


def _choose(system: System, role: Role) -> Member | None:
    members = [member for member in system.fleet.of(role) if not member.has_exited]
    return system.random.choice(members) if members else None


def kill_worker_process(system: System) -> None:
    """Kill a process that runs handlers. Its supervisor survives."""
    supervisor = _choose(system, "worker")
    children = supervisor.children() if supervisor else []
    if children:
        pid = system.random.choice(children)
        system.record("kill worker process", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_supervisor(system: System) -> None:
    """Kill a supervisor. Its worker processes are expected to die with it."""
    supervisor = _choose(system, "worker")
    if supervisor:
        children = supervisor.children()
        system.record("kill supervisor", supervisor.pid, *children)
        supervisor.process.kill()
        system.expect_exit(children)


def kill_host(system: System) -> None:
    """Kill a supervisor and its worker processes at once, as when a host dies."""
    supervisor = _choose(system, "worker")
    if supervisor:
        pids = [supervisor.pid, *supervisor.children()]
        system.record("kill host", *pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_producer(system: System) -> None:
    _kill_member(system, "producer")


def kill_consumer(system: System) -> None:
    _kill_member(system, "consumer")


def _kill_member(system: System, role: Role) -> None:
    member = _choose(system, role)
    if member:
        system.record(f"kill {role}", member.pid)
        member.process.kill()


def stop_supervisor(system: System) -> None:
    """SIGTERM, as a deployment does it."""
    supervisor = _choose(system, "worker")
    if supervisor:
        system.record("stop supervisor", supervisor.pid)
        supervisor.stop_requested = True
        supervisor.process.send_signal(signal.SIGTERM)


def freeze_worker_process(system: System) -> None:
    supervisor = _choose(system, "worker")
    children = supervisor.children() if supervisor else []
    if children:
        _freeze(system, "freeze worker process", [system.random.choice(children)])


def freeze_supervisor(system: System) -> None:
    supervisor = _choose(system, "worker")
    if supervisor:
        _freeze(system, "freeze supervisor", [supervisor.pid])


def freeze_supervisor_and_workers(system: System) -> None:
    """Freeze a supervisor with all its processes, like a virtual machine that is suspended."""
    supervisor = _choose(system, "worker")
    if supervisor:
        pids = [supervisor.pid, *supervisor.children()]
        _freeze(system, "freeze supervisor and workers", pids)


def freeze_producer_or_consumer(system: System) -> None:
    role: Role = system.random.choice(("producer", "consumer"))
    member = _choose(system, role)
    if member:
        _freeze(system, f"freeze {role}", [member.pid])


def _freeze(system: System, kind: str, pids: list[int]) -> None:
    seconds = system.random.choice((0.1, 1.0, 5.0, system.random.uniform(0.1, 20)))
    began = now()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        # Recorded first, so that the processes resume after the recorded time.
        system.record(kind, *pids, at=began, until=now())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    system.later(seconds, thaw)
