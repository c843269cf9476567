"""Clients that wait for jobs and receive the messages of the server."""

from tests.store.harness import Harness

__all__ = ["Waiter"]


class Waiter:
    """A client of a host that is subscribed and waits. With a `group`, it has a supervisor."""

    def __init__(self, h: Harness, name: str, *, host: int, group: int | None = None) -> None:
        self.h, self.name = h, f"h{host:08x}-{name}"
        if group is not None:
            self.name = f"h{host:08x}-g{group:08x}-{name}"
        self._ears = h.redis.pubsub()
        self._ears.ssubscribe(h.keys.channel(self.name))
        assert self._ears.get_sharded_message(timeout=5)["type"] == "ssubscribe"
        h.join(self.name)
        self.asked = self.sleep()
        """After how many seconds the server asked it to poll, when it began to wait."""

    def sleep(self, seconds: float = 8) -> float:
        """Dequeues, gets nothing and waits. Returns when the server asks it to poll again."""
        taken = self.h.dequeue(self.name, waiter=self.name, waits=seconds)
        assert taken.jobs == []
        assert taken.next_in is not None
        return taken.next_in

    def end(self) -> None:
        """Loses its connection, and does not come back."""
        self._ears.sunsubscribe()
        while self._ears.get_sharded_message(timeout=5)["type"] != "sunsubscribe":
            pass
        self._ears.close()

    def heard(self) -> bytes:
        """The next message; b'' if there is none."""
        self.h.redis.ping()  # the server has sent all messages of earlier calls
        said = self._ears.get_sharded_message(timeout=0.05)
        return said["data"] if said else b""
