"""The server that every competitor is measured on: Valkey from the wheel, TCP, no persistence."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from tests.servers import Server, ServerKind, start_server, wait_until

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


class BenchServer:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.url = f"redis://{server.address}/0"
        self.redis = redis.Redis.from_url(self.url)

    def info(self, section: str) -> dict[str, Any]:
        return self.redis.info(section)  # pyright: ignore[reportReturnType]

    @property
    def version(self) -> str:
        found = self.info("server")
        return str(found.get("valkey_version") or found["redis_version"])

    def cpu(self) -> float:
        """CPU seconds used by the server's main thread, which executes the commands."""
        cpu = self.info("cpu")
        return cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]

    def memory(self) -> int:
        """Bytes of memory that the server uses."""
        return self.info("memory")["used_memory"]

    def flush(self) -> None:
        """Delete all data and statistics. Functions and scripts stay loaded."""
        self.redis.flushall()
        self.redis.config_resetstat()

    @contextmanager
    def persistent(self) -> Generator[None]:
        """Write an append-only file, synced every second, while the block runs."""
        self.redis.config_set("appendonly", "yes")
        try:
            wait_until(lambda: not self._is_rewriting(), "the append-only file is written")
            yield
        finally:
            self.redis.config_set("appendonly", "no")

    def _is_rewriting(self) -> bool:
        return bool(self.info("persistence")["aof_rewrite_in_progress"])

    def pin(self, pinned: bool) -> None:
        """Pin the server to the first core, or let it run on every core."""
        cores = CORES[:1] if pinned else CORES
        for thread in Path(f"/proc/{self._server.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def bench_server() -> Generator[BenchServer]:
    """A new server for the length of the block."""
    with start_server(ServerKind.VALKEY, appendonly=False) as server:
        found = BenchServer(server)
        try:
            yield found
        finally:
            found.redis.close()
