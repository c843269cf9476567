"""A TCP proxy that causes network faults on request: cuts at any point, stalls, silence.

    async with Proxy(server.port) as proxy:
        proxy.cut("dispatch", Cut.HALF_SENT)  # the next one
        proxy.stall(3)

Or a program, controlled by lines on a unix socket (calm, harass 0.01, stall 3, deaf 5, cut all,
refuse 5, reset 5, loading 5, clusterdown 5):

    python -m tests.proxy --listen-port 1 --upstream-port 2 --seed 3 --control path
"""

import asyncio
import enum
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tests.access import access
from tests.proxy.resp import end_of, name_of

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Meanwhile = Callable[[], Awaitable[None]]
CHUNK = 65536
STALLS = 0.05  # probability of a stall in each second of `harass`
LONGEST_STALL = 3.0
# What a server answers to every call, and the commands that it still serves meanwhile.
ANSWERS = {
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "clusterdown": b"-CLUSTERDOWN The cluster is down\r\n",
}
STILL_SERVED = ("HELLO", "AUTH", "CLIENT", "INFO", "CLUSTER")
ORDERS = ("calm", "harass", "stall", "deaf", "cut_all", "refuse", "reset", *ANSWERS)


class Cut(enum.StrEnum):
    """Where the connection is cut: before any or after some of the command arrived; before any or
    after some of the answer came back.
    """

    UNSENT = enum.auto()
    HALF_SENT = enum.auto()
    UNANSWERED = enum.auto()
    HALF_ANSWERED = enum.auto()


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    dead: bool
    writer: Writer | None = None
    subscribed: bool = False
    due: list[Cut | None] = field(default_factory=list)
    """What to do with each answer still to come. Published messages have no entry."""


class Proxy:
    """Forwards bytes to a server on this machine, and knows where commands begin and end."""

    def __init__(self, upstream: int, port: int = 0, seed: int | None = None) -> None:
        self._upstream = upstream
        self.port = port
        self._random = random.Random(seed)
        self._doomed: list[tuple[str, Cut]] = []
        self._meanwhile: list[Meanwhile] = []
        self._delayed: list[tuple[str, asyncio.Event, asyncio.Event]] = []
        self._late: list[asyncio.Task[None]] = []
        self._swallowed: set[str] = set()
        self._withheld: bytes | None = None
        self._kept: bytes | None = None
        self._keeping = asyncio.Event()
        self._rate = 0.0
        self._harassing: asyncio.Task[None] | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._timers: dict[object, asyncio.TimerHandle] = {}
        self._deaf = False
        self._resets = False
        self._answer: bytes | None = None
        self._links: dict[_Link, Any] = {}
        self.lost = 0
        """Commands that were cut or swallowed."""
        self.abreast = 0
        """The most calls that were in flight at a time on one connection."""

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *error: object) -> None:
        self.calm()
        await asyncio.gather(*self._late)
        self._server.close()
        tasks = list(self._links.values())
        self.cut_all()
        for late in self._late:
            late.cancel()
        await asyncio.gather(*tasks, *self._late, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"redis://{access.credentials}127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self, command: str, point: Cut) -> None:
        """The next call of this function, or next command of this name, is cut there."""
        self._doomed.append((command, point))

    def lose_answer_to(self, command: str, meanwhile: Meanwhile | None = None) -> None:
        """The next answer is lost; `meanwhile` runs before the caller can notice."""
        self.cut(command, Cut.UNANSWERED)
        if meanwhile is not None:
            self._meanwhile.append(meanwhile)

    def delay(self, command: str) -> Meanwhile:
        """The next call is cut before it arrives. Awaiting the result delivers it late."""
        arrives, arrived = asyncio.Event(), asyncio.Event()
        self._delayed.append((command, arrives, arrived))

        async def arrive() -> None:
            arrives.set()
            await arrived.wait()

        return arrive

    def swallow(self, command: str) -> None:
        """Commands of this name never arrive and are never answered; connections stay open."""
        self._swallowed.add(command)

    def withhold(self, message: bytes) -> None:
        """The next published message that contains this is kept until `deliver`."""
        self._withheld = message

    async def withheld(self) -> None:
        """Returns when a message is kept."""
        await self._keeping.wait()

    def deliver(self) -> None:
        """The message that was kept arrives on every connection that has subscribed; again, if
        this is called again.
        """
        assert self._kept is not None
        for link in self._links:
            if link.writer is not None and link.subscribed:
                link.writer.write(self._kept)

    def lead_to(self, upstream: int) -> None:
        """New connections go to another server, as when a host name moves."""
        self._upstream = upstream

    def cut_all(self) -> None:
        """Cuts every connection, now."""
        for task in self._links.values():
            task.cancel()

    def stall(self, seconds: float) -> None:
        """Nothing passes in either direction for that long; then everything does."""
        self._passing.clear()
        self._later(seconds, self._passing.set)

    def deaf(self, seconds: float | None = None) -> None:
        """Connections are accepted and never answered. Present connections, and those opened
        meanwhile, stay silent afterwards, and neither end is closed.
        """
        self._deaf = True
        for link in self._links:
            link.dead = True
        if seconds is not None:
            self._later(seconds, self._hear)

    def refuse(self, seconds: float) -> None:
        """Nothing listens at its address, as when a tunnel has ended: connections are refused."""
        self._server.close()
        self.cut_all()
        self._later(seconds, self._listen_again)

    def reset(self, seconds: float) -> None:
        """Every connection is reset, also each new one."""
        self._resets = True
        self.cut_all()
        self._later(seconds, self._stop_resets)

    def answer(self, error: bytes, seconds: float) -> None:
        """Every call is answered with this error and does not reach the server."""
        self.cut_all()  # calls that are in flight stay unanswered
        self._answer = error
        self._later(seconds, self._stop_answers)

    def harass(self, rate: float, stalls: float = STALLS) -> None:
        """Cuts each command at a random point with probability `rate`, and begins a stall in each
        second with probability `stalls`.
        """
        self.calm()
        self._rate = rate
        self._harassing = asyncio.create_task(self._stall_now_and_then(stalls))

    def calm(self) -> None:
        """Ends every fault requested before."""
        for timer in self._timers.values():
            timer.cancel()
        if self._harassing is not None:
            self._harassing.cancel()
        self._rate = 0.0
        self._doomed.clear()
        self._swallowed.clear()
        self._passing.set()
        self._hear()
        self._stop_resets()
        self._stop_answers()
        self._listen_again()

    def obey(self, order: str) -> None:
        """An order in words: "calm", "harass 0.01", "stall 3", "cut all", "loading 5", …"""
        word, *numbers = order.replace("cut all", "cut_all").split() or [""]
        if word not in ORDERS:
            raise ValueError(f"expected one of {', '.join(ORDERS)}, got {order!r}")
        if word in ANSWERS:
            self.answer(ANSWERS[word], float(numbers[0]))
        else:
            getattr(self, word)(*map(float, numbers))

    def _stop_resets(self) -> None:
        self._resets = False

    def _stop_answers(self) -> None:
        self._answer = None

    def _listen_again(self) -> None:
        if not self._server.is_serving():
            self._late.append(asyncio.create_task(self._listen()))

    def _hear(self) -> None:
        self._deaf = False

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        if (before := self._timers.pop(action, None)) is not None:
            before.cancel()
        self._timers[action] = asyncio.get_running_loop().call_later(seconds, action)

    async def _stall_now_and_then(self, chance: float) -> None:
        while True:
            await asyncio.sleep(1)
            if self._passing.is_set() and self._random.random() < chance:
                self.stall(self._random.uniform(0.1, LONGEST_STALL))

    async def _accept(self, reader: Reader, writer: Writer) -> None:
        if self._resets:
            linger = struct.pack("ii", 1, 0)  # closing sends RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()
            return
        link = _Link(dead=self._deaf, writer=writer)
        self._links[link] = asyncio.current_task()
        writers = [writer]
        # Cancelling this task cuts the connection; the exception stays here.
        with suppress(OSError, asyncio.CancelledError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            writers.append(up_writer)
            await _first_of(
                self._commands(link, reader, up_writer), self._answers(link, up_reader, writer)
            )
        for one in writers:
            one.close()
        del self._links[link]

    async def _commands(self, link: _Link, reader: Reader, writer: Writer) -> None:
        buffer = bytearray()
        while data := await self._read(reader):
            if link.dead:
                continue
            buffer += data
            while end := end_of(buffer):
                command = bytes(buffer[:end])
                del buffer[:end]
                name = name_of(command)
                link.subscribed |= name == "SSUBSCRIBE"
                if self._answer is not None and name not in STILL_SERVED:
                    await self._answer_itself(link, self._answer)
                    continue
                if name in self._swallowed:
                    self.lost += 1
                    continue
                if delayed := next((one for one in self._delayed if one[0] == name), None):
                    self._delayed.remove(delayed)
                    self.lost += 1
                    self._late.append(asyncio.create_task(self._deliver(command, *delayed[1:])))
                    return
                point = self._point_for(name)
                if point is Cut.HALF_SENT:
                    writer.write(command[: self._random.randrange(1, len(command))])
                if point in (Cut.UNSENT, Cut.HALF_SENT):
                    return
                writer.write(command)
                link.due.append(point)
                self.abreast = max(self.abreast, len(link.due))
            await writer.drain()

    async def _answer_itself(self, link: _Link, answer: bytes) -> None:
        """Answers a command instead of the server, after the answers to those before it."""
        self.lost += 1
        while link.due:
            await asyncio.sleep(0.001)
        assert link.writer is not None
        link.writer.write(answer)

    async def _answers(self, link: _Link, reader: Reader, writer: Writer) -> None:
        buffer = bytearray()
        while data := await self._read(reader):
            if link.dead:
                continue
            buffer += data
            while end := end_of(buffer):
                if not link.due and self._keeps(bytes(buffer[:end])):
                    del buffer[:end]
                    continue
                point = link.due.pop(0) if link.due else None
                if point is Cut.HALF_ANSWERED:
                    end = self._random.randrange(1, end)
                if point is not Cut.UNANSWERED:
                    writer.write(buffer[:end])
                if point is not None:
                    while self._meanwhile:
                        await self._meanwhile.pop()()
                    return
                del buffer[:end]
            await writer.drain()

    def _keeps(self, message: bytes) -> bool:
        if self._withheld is None or self._withheld not in message:
            return False
        self._withheld, self._kept = None, message
        self._keeping.set()
        return True

    async def _deliver(
        self, command: bytes, arrives: asyncio.Event, arrived: asyncio.Event
    ) -> None:
        """Delivers a command after its sender has given up, as a network may."""
        await arrives.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        writer.write(command)
        await reader.read(1)  # the first byte of the answer: it was carried out
        writer.close()
        arrived.set()

    async def _read(self, reader: Reader) -> bytes:
        await self._passing.wait()  # wait before reading too, so that sent bytes pile up
        data = await reader.read(CHUNK)
        await self._passing.wait()
        return data

    def _point_for(self, name: str) -> Cut | None:
        point = None
        if doomed := next((one for one in self._doomed if one[0] == name), None):
            self._doomed.remove(doomed)
            point = doomed[1]
        elif self._rate and self._random.random() < self._rate:
            point = self._random.choice(list(Cut))
        self.lost += point is not None
        return point


async def _first_of(*works: Coroutine[object, object, None]) -> None:
    """Waits until one of them ends, and cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
