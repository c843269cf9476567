"""A queue's service without a server or a client, and a clock that stands still."""

from queasy.handler import Function, Handler, HandlerOptions
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.worker.plan import Service


def service(*, size: int | None = 10, priority: int = 100, is_async: bool = True) -> Service:
    async def run(*_: object) -> None: ...

    options = HandlerOptions(size=size, priority=priority)
    handler = Handler("q", False, options, run, None)  # type: ignore[arg-type]
    return Service(handler, Function(run, is_async, "run"), QueueCommands(QueueKeys("p", "q")))


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
