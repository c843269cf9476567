"""What the sentinels of a group announce, and when."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import redis

from tests.groups import SentinelGroup
from tests.servers import Server

SWITCH = "+switch-master"


@dataclass
class Announcements:
    """Every announcement of every sentinel, with the monotonic time at which it arrived."""

    heard: list[tuple[float, str, str]] = field(default_factory=list)

    def first(self, channel: str, since: float) -> float | None:
        """When the first announcement of this kind came after `since`; None if none came."""
        times = (at for at, kind, _ in self.heard if kind == channel and at >= since)
        return min(times, default=None)


@contextmanager
def announcements_of(group: SentinelGroup) -> Generator[Announcements]:
    """Listens to every sentinel, in threads, while the context lasts."""
    found = Announcements()
    over = threading.Event()

    def listen(sentinel: Server, subscribed: threading.Event) -> None:
        with sentinel.client() as client, client.pubsub() as pubsub, suppress(redis.RedisError):
            pubsub.psubscribe("*")
            while not over.is_set():
                message = pubsub.get_message(timeout=0.1)
                if message is not None and message["type"] == "psubscribe":
                    subscribed.set()
                elif message is not None:
                    found.heard.append((time.monotonic(), message["channel"], message["data"]))

    threads = []
    for sentinel in group.sentinels:
        subscribed = threading.Event()
        threads.append(threading.Thread(target=listen, args=(sentinel, subscribed), daemon=True))
        threads[-1].start()
        assert subscribed.wait(10), f"sentinel {sentinel.port} does not answer"
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join()
