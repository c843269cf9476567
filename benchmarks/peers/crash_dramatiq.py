# /// script
# [tool.crash]
# settings = "`--processes 1 --threads 10`, all default middleware (`Retries`)"
# governs = "`heartbeat_timeout` (60 s), then `maintenance_chance` (1 in 1,000 commands)"
# restarts = "the benchmark, at once: its main process ends when a child dies"
# ///
"""Dramatiq with its defaults, on its Redis broker. It acknowledges a message after the run."""

import crash_kit
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=crash_kit.URL))


@dramatiq.actor
def job(data):
    crash_kit.run(data)


def worker():
    crash_kit.execute("dramatiq", "crash_dramatiq", "--processes", 1, "--threads", 10)


def send(data):
    job.send(data)


if __name__ == "__main__":
    crash_kit.main(worker=worker, send=send)
