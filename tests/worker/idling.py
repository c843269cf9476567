"""An idle worker of 20 empty queues, and its cost in commands and CPU."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers import Server
from tests.worker.fleet import Fleet

QUEUES = [*(f"crowd-{n}" for n in range(15)), "waits", "high", "low", "whole", "small"]
# Time to connect, register and poll once.
SETTLING = 3.0
TICKS = os.sysconf("SC_CLK_TCK")


class Idling:
    """Measures from when the worker serves."""

    def __init__(self, server: Server, fleet: Fleet) -> None:
        self.server = server
        self.fleet = fleet
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        options = [word for name in QUEUES for word in ("--queue", name)]
        self.worker = self.fleet.serve(*options, processes=2)
        connection = self._stack.enter_context(self.server.client(socket_timeout=None))
        self._monitor = self._stack.enter_context(connection.monitor())
        self._since = time.time()
        self._cpu_since, self._cpu = time.monotonic(), self._cpu_used()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _cpu_used(self) -> float:
        """CPU seconds of the supervisor and its workers."""
        pids = [self.worker.pid, *self.worker.children()]
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS

    @property
    def seconds(self) -> float:
        """How long it has been idle."""
        return time.time() - self._since - SETTLING

    def cpu(self) -> float:
        """The share of one CPU that it used."""
        return (self._cpu_used() - self._cpu) / (time.monotonic() - self._cpu_since)

    def commands(self) -> list[tuple[float, str]]:
        """The commands that clients sent since it settled, with the time of each in seconds."""
        marker = f"ECHO {os.urandom(8).hex()}"
        self.server.call(*marker.split())
        found: list[tuple[float, str]] = []
        while (line := self._next())["command"] != marker:
            # Commands inside functions are not sent by clients. The marker ends the list.
            if line["client_type"] != "lua":
                found.append((line["time"] - self._since - SETTLING, line["command"]))
        return [(at, command) for at, command in found if 0 <= at < self.seconds - 0.5]

    def _next(self) -> dict[str, Any]:
        return self._monitor.next_command()
