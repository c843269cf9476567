"""One awaited dispatch against a bare FCALL of the same function with the same arguments; one
lease and its completion against two of them.

The arguments are those of two real dispatches, seen by MONITOR; what differs between these two
(the id of the job, the number of the call) is made to differ in each bare call as well. The bare
connection is the least there is in asyncio: it packs, writes, and reads with hiredis.
"""

import asyncio
import codecs
import itertools
import re
import socket
import time
from collections.abc import Awaitable, Callable

import hiredis
import redis.asyncio
import uvloop

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from queasy import Client

CALLS, TURNS = 300, 8
DATA = "x" * 100


class Bare(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._answer: asyncio.Future[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if (answer := self._reader.gets()) is not False and self._answer is not None:
            self._answer.set_result(answer)

    async def call(self, *arguments: bytes | str | int) -> object:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(hiredis.pack_command(arguments))  # pyright: ignore
        return await self._answer

    def close(self) -> None:
        self._transport.close()


def run(who: Competitor, server: BenchServer, *, pinned: bool, scale: float) -> dict[str, float]:
    with who.at(server, pinned):
        return uvloop.run(_run(server, max(int(CALLS * min(scale, 1)), 10)))


async def _run(server: BenchServer, calls: int) -> dict[str, float]:
    host, port = server.url.removeprefix("redis://").removesuffix("/0").split(":")
    async with Client(server.url) as client, Client(server.url) as other:
        queue, seen = client.queue("noop"), other.queue("noop")
        await queue.dispatch(DATA)
        await seen.dispatch(DATA)
        # Of another client, who falls silent afterwards: the bare calls are numbered as its own.
        first = await _seen(host, int(port), lambda: seen.dispatch(DATA))
        commands = _alike(first, await _seen(host, int(port), lambda: seen.dispatch(DATA)))
        bare = Bare()
        await asyncio.get_running_loop().create_connection(lambda: bare, host, int(port))
        library = redis.asyncio.Redis.from_url(server.url)

        async def lease() -> None:
            held = await queue.lease(seconds=30)
            assert await held.complete()

        async def two() -> None:
            await bare.call(*next(commands))
            await bare.call(*next(commands))

        answer = await bare.call(*next(commands))
        assert not isinstance(answer, Exception), answer
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "dispatch": lambda: queue.dispatch(DATA),
            "bare": lambda: bare.call(*next(commands)),
            "redis-py": lambda: library.execute_command(*next(commands)),
            "lease": lease,
            "two bare": two,
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(TURNS):  # in turns, and short ones: whatever disturbs hits all
            for name, call in ways.items():
                began = time.perf_counter()
                for _ in range(calls):
                    await call()
                best[name] = min(best[name], (time.perf_counter() - began) / calls)
        await library.aclose()
        bare.close()
    return {
        "bare FCALL": 1 / best["bare"],
        "redis-py FCALL": 1 / best["redis-py"],
        "dispatch part": best["bare"] / best["dispatch"],
        "lease part": best["two bare"] / best["lease"],
    }


async def _seen(host: str, port: int, act: Callable[[], Awaitable[object]]) -> list[bytes]:
    """The FCALL that somebody sends meanwhile."""
    with socket.create_connection((host, port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        monitor.recv(5)
        await act()
        lines = b""
        while True:
            lines += monitor.recv(65536)
            for line in lines.split(b"\r\n")[:-1]:
                words = re.findall(rb'"((?:\\.|[^"\\])*)"', line)
                if words[:1] == [b"FCALL"] and b"dispatch" in words[1]:
                    return [codecs.escape_decode(word)[0] for word in words]  # pyright: ignore


def _alike(first: list[bytes], second: list[bytes]):
    """Endlessly many calls that differ from each other as these two do."""
    assert len(first) == len(second), (first, second)
    for number in itertools.count(1):
        yield [
            two
            if one == two
            else b"%d" % (int(two) + number)
            if one.isdigit() and two.isdigit()
            else (b"%d" % number).rjust(len(two), b"-")
            for one, two in zip(first, second, strict=True)
        ]
