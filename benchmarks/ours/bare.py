"""One awaited dispatch, and one lease with its completion, each next to the bare FCALLs it needs.

The bare calls use Queasy's own connections. Their arguments are those of two real dispatches, read
from MONITOR. Whatever differs between these two (the id of the job, the number of the call)
differs in the same way between the bare calls.
"""

import codecs
import itertools
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import redis.asyncio

from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.competitor import Competitor
from queasy import Client
from queasy.dispatch import new_id
from queasy.outcomes import Finish
from queasy.store.idempotency import Caller
from queasy.store.net.connection import Endpoint, pack
from queasy.store.net.url import parse_url
from queasy.store.net.wire import Wire
from queasy.store.records import Ending

CALLS, TURNS = 300, 8
DATA = "x" * 100
# This module uses internals of Queasy, so every checkout runs its own copy of it, by `_run`.
PROGRAM = """
import json, sys, uvloop
from types import SimpleNamespace
from benchmarks.ours.bare import _run
print(json.dumps(uvloop.run(_run(SimpleNamespace(url=sys.argv[1]), int(sys.argv[2])))))
"""
RENAMED = {"dispatch part": "dispatch ratio", "lease part": "lease ratio"}  # in older checkouts


def run(
    competitor: Competitor, server: BenchServer, *, pinned: bool, scale: float
) -> dict[str, float]:
    calls = max(int(CALLS * min(scale, 1)), 10)
    with competitor.on(server, pinned) as bench:
        found = bench.run_python("-c", PROGRAM, server.url, calls)
    return {RENAMED.get(metric, metric): value for metric, value in found.items()}


class BareConnection:
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


async def _run(server: Any, calls: int) -> dict[str, float]:
    async with Client(server.url) as client, Client(server.url) as other:
        queue, observed = client.queue("noop"), other.queue("noop")
        await queue.dispatch(DATA)
        await observed.dispatch(DATA)
        # Another client's calls are observed; it makes no more afterwards, so that the bare calls
        # can continue its numbers.
        first = await _observe(server.url, lambda: observed.dispatch(DATA))
        second = await _observe(server.url, lambda: observed.dispatch(DATA))
        commands = _similar_calls(first, second)
        bare = BareConnection(server.url)
        await bare.open()
        settle = queue._commands.settle([Ending("", 0, Finish())]).words()[:-3]
        library = redis.asyncio.Redis.from_url(server.url)
        caller = Caller()

        async def lease() -> None:
            held = await queue.lease(seconds=30)
            assert await held.complete()

        async def lease_by_two_bare_calls() -> None:
            dequeue = queue._commands.dequeue(f"~{new_id()}", lease=30, limit=1)
            taken = await bare.call(*dequeue.with_number(*caller.next_call()).words())
            id_, token = taken[3][:2]
            assert await bare.call(*settle, id_, token, b"") == [b"finished"]

        answer = await bare.call(*next(commands))
        assert not isinstance(answer, Exception), answer
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "dispatch": lambda: queue.dispatch(DATA),
            "bare": lambda: bare.call(*prepared.pop()),
            "redis-py": lambda: library.execute_command(*prepared.pop()),
            "lease": lease,
            "two bare": lease_by_two_bare_calls,
        }
        # One job for every lease.
        await queue.dispatch_many([DATA] * (2 * TURNS * calls))
        best = dict.fromkeys(ways, float("inf"))
        prepared: list[list[bytes]] = []
        for _ in range(TURNS):  # short turns, so that other load on the machine affects all alike
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
        "dispatch ratio": best["bare"] / best["dispatch"],
        "lease ratio": best["two bare"] / best["lease"],
    }


async def _observe(url: str, act: Callable[[], Awaitable[object]]) -> list[bytes]:
    """The dispatch call that the server receives while `act` runs."""
    host, port = url.removeprefix("redis://").removesuffix("/0").split(":")
    with socket.create_connection((host, int(port))) as monitor:
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


def _similar_calls(first: list[bytes], second: list[bytes]) -> Iterator[list[bytes]]:
    """Endless calls that differ from each other as these two do."""
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
