"""The proxy does what it says, fast enough for a crowd; and the same as a program."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queasy import Client, SyncClient, Unreachable
from tests.proxy import Proxy
from tests.proxy.resp import end_of, name_of
from tests.servers import Server, free_port, wait_until
from tests.worker.fleet import ON_ONE_SERVER, ROOT


def test_commands_and_replies_end_where_they_end() -> None:
    whole = b"*3\r\n$5\r\nFCALL\r\n$15\r\nqueasy_v1_bump\n\r\n$-1\r\n"
    assert end_of(bytearray(whole + b"+OK\r\n")) == len(whole)
    assert [end_of(bytearray(whole[:cut])) for cut in range(len(whole))] == [0] * len(whole)
    for reply in (
        b"+OK\r\n",
        b":1\r\n",
        b"$0\r\n\r\n",
        b"*-1\r\n",
        b"*2\r\n*1\r\n:1\r\n$2\r\n\r\n\r\n",
    ):
        assert end_of(bytearray(reply + b"*")) == len(reply)
    assert name_of(b"*3\r\n$8\r\nFCALL_RO\r\n$16\r\nqueasy_v1_counts\r\n$1\r\n0\r\n") == "counts"
    assert name_of(b"*1\r\n$4\r\nINFO\r\n") == "INFO"


@ON_ONE_SERVER
async def test_all_arrives_in_time_through_harassment(server: Server, prefix: str) -> None:
    async with Proxy(server.port, seed=1) as proxy, Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        proxy.harass(0.1, stalls=0)
        for number in range(100):
            await queue.dispatch(number, id=str(number))
        assert proxy.lost > 0
        proxy.calm()
        assert (await queue.counts()).waiting == 100


@ON_ONE_SERVER
def test_the_program_obeys(server: Server, prefix: str, tmp_path: Path) -> None:
    port, control = free_port(), tmp_path / "control"
    options = {"--listen-port": port, "--upstream-port": server.port, "--seed": 1}
    words = [str(word) for pair in options.items() for word in pair]
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.proxy", *words, "--control", str(control)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_until(control.exists, "the proxy is there")
        with SyncClient(f"redis://127.0.0.1:{port}", prefix=prefix, timeout=0.3) as client:
            queue = client.queue("q")
            asyncio.run(tell(control, "harass 0.2 0"))
            for number in range(20):
                queue.dispatch(number)
            asyncio.run(tell(control, "calm"))
            asyncio.run(tell(control, "deaf 60"))
            began = time.monotonic()
            with pytest.raises(Unreachable):
                queue.counts()
            assert time.monotonic() - began >= 0.3
            asyncio.run(tell(control, "calm"))
            asyncio.run(tell(control, "cut all"))
            assert queue.counts().waiting == 20
            asyncio.run(tell(control, "stall 0.1"))
            assert queue.counts().waiting == 20
    finally:
        program.terminate()
        printed, _ = program.communicate()
    assert printed == b""


async def tell(control: Path, order: str) -> None:
    reader, writer = await asyncio.open_unix_connection(control)
    writer.write(order.encode() + b"\n")
    assert await reader.readline() == b"ok\n"
    writer.close()
    await writer.wait_closed()
