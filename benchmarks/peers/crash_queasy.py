# /// script
# [tool.crash]
# settings = "`queasy worker --processes 1`, all defaults (10 jobs at once)"
# governs = "the supervisor returns the jobs of a dead process at once, and those that had started run in groups of half as many, to find a job that kills its worker; a dead host's jobs return when the lease (13 s) ends"
# restarts = "its supervisor"
# ///
"""Queasy with its defaults."""

import os
import sys
from pathlib import Path

import crash_kit

from queasy import Client

client = Client(crash_kit.URL)
queue = client.queue("crash")


@queue.handler
async def job(data):
    await crash_kit.run_async(data)


def worker():
    app = f"{Path(__file__).resolve()}:client"
    os.execv(sys.executable, [sys.executable, "-m", "queasy", "worker", app, "--processes", "1"])


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=queue.dispatch, connect=client.connect)
