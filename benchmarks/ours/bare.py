"""One awaited dispatch against a bare FCALL of the same function with the same arguments; one
lease and its completion against the two bare FCALLs it takes. All over Queasy's own connections.

The arguments of the dispatch are those of two real ones, seen by MONITOR; what differs between
these two (the id of the job, the number of the call) is made to differ in each bare call as well.
"""

import codecs
import itertools
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import redis.asyncio
import uvloop

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from queasy import Client
from queasy.dispatch import new_id
from queasy.outcomes import Finish
from queasy.store.net.connection import Endpoint, pack
from queasy.store.net.url import parse_url
from queasy.store.net.wire import Wire
from queasy.store.records import Ending

CALLS, TURNS = 300, 8
DATA = "x" * 100


class Bare:
    """Packs, writes and reads, and nothing else."""

    def __init__(self, url: str) -> None:
        target = parse_url(url)
        self._wire = Wire(Endpoint.to(target, target.addresses[0], 10.0, sentinel=False))

    async def open(self) -> None:
        await self._wire.open()

    async def call(self, *words: Any) -> Any:
        (answer,) = await self._wire.call(pack((words,)), 1)
        return answer

    def close(self) -> None:
        self._wire.end()


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
        bare = Bare(server.url)
        await bare.open()
        settle = queue._commands.settle([Ending("", 0, Finish())]).words()[:-4]
        library = redis.asyncio.Redis.from_url(server.url)

        async def lease() -> None:
            held = await queue.lease(seconds=30)
            assert await held.complete()

        async def two() -> None:
            take = queue._commands.dequeue(f"~{new_id()}", lease=30, limit=1)
            taken = await bare.call(*take.words())
            id_, token = taken[3][:2]
            assert await bare.call(*settle, id_, token, "", b"") == [b"finished"]

        answer = await bare.call(*next(commands))
        assert not isinstance(answer, Exception), answer
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "dispatch": lambda: queue.dispatch(DATA),
            "bare": lambda: bare.call(*prepared.pop()),
            "redis-py": lambda: library.execute_command(*prepared.pop()),
            "lease": lease,
            "two bare": two,
        }
        # So many that there is one to lease each time.
        await queue.dispatch_many([DATA] * (2 * TURNS * calls))
        best = dict.fromkeys(ways, float("inf"))
        prepared: list[list[bytes]] = []
        for _ in range(TURNS):  # in turns, and short ones: whatever disturbs hits all
            for name, call in ways.items():
                prepared = list(itertools.islice(commands, calls))[::-1]
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
                if words[:1] == [b"FCALL"] and words[1].endswith(b"_put"):
                    return [codecs.escape_decode(word)[0] for word in words]  # pyright: ignore


def _alike(first: list[bytes], second: list[bytes]) -> Iterator[list[bytes]]:
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
