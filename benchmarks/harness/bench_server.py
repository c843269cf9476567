"""The server that all are measured on: Valkey of the wheel, loopback TCP, nothing on disk."""

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
        """Seconds that the thread which runs commands has used."""
        cpu = self.info("cpu")
        return cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]

    def memory(self) -> int:
        return self.info("memory")["used_memory"]

    def flush(self) -> None:
        """All data gone, without the memory of it; functions and scripts stay loaded."""
        self.redis.flushall()
        self.redis.config_resetstat()

    @contextmanager
    def persistent(self) -> Generator[None]:
        """With an append-only file, synced every second."""
        self.redis.config_set("appendonly", "yes")
        try:
            wait_until(lambda: not self._rewrites(), "the file is there")
            yield
        finally:
            self.redis.config_set("appendonly", "no")

    def _rewrites(self) -> bool:
        return bool(self.info("persistence")["aof_rewrite_in_progress"])

    def pin(self, pinned: bool) -> None:
        """To the first core, or to none."""
        cores = CORES[:1] if pinned else CORES
        for thread in Path(f"/proc/{self._server.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def bench_server() -> Generator[BenchServer]:
    with start_server(ServerKind.VALKEY, appendonly=False) as server:
        found = BenchServer(server)
        try:
            yield found
        finally:
            found.redis.close()
