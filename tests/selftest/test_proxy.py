"""Tests of the proxy, as an object and as a program."""

import time

import pytest

from queasy import Client, NotReady, NotRunning, SyncClient, Unreachable
from tests.proxy import Proxy
from tests.proxy.program import start_proxy
from tests.proxy.resp import end_of, name_of
from tests.servers import Server
from tests.worker.fleet import ON_ONE_SERVER


def test_proxy_finds_the_end_of_commands_and_replies() -> None:
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
async def test_every_call_passes_a_proxy_that_cuts_at_random(proxy: Proxy, prefix: str) -> None:
    async with Client(proxy.url, prefix=prefix) as client:
        queue = client.queue("q")
        proxy.harass(0.1, stalls=0)
        for number in range(100):
            await queue.dispatch(number, id=str(number))
        assert proxy.lost > 0
        proxy.calm()
        assert (await queue.counts()).waiting == 100


@ON_ONE_SERVER
def test_proxy_program_obeys_orders(server: Server, prefix: str, seed: int) -> None:
    with (
        start_proxy(server.port, seed) as proxy,
        SyncClient(proxy.url, prefix=prefix) as client,
        SyncClient(proxy.url, prefix=prefix, timeout=0.3) as hasty,
    ):
        queue = client.queue("q")
        proxy.tell("harass 0.2 0")
        for number in range(20):
            queue.dispatch(number)
        proxy.tell("calm")
        proxy.tell("deaf 60")
        with pytest.raises(Unreachable):
            hasty.queue("q").counts()
        proxy.tell("calm")
        proxy.tell("cut all")
        assert queue.counts().waiting == 20
        began = time.monotonic()
        proxy.tell("stall 0.1")
        assert queue.counts().waiting == 20
        # With some slack: a timer of another process may fire early by its clock's resolution.
        assert time.monotonic() - began > 0.05


@ON_ONE_SERVER
@pytest.mark.parametrize(
    ("order", "error"),
    [
        ("refuse 60", NotRunning),
        ("reset 60", Unreachable),
        ("loading 60", NotReady),
        ("clusterdown 60", NotReady),
    ],
)
def test_proxy_program_fails_a_path_as_ordered(
    server: Server, prefix: str, seed: int, order: str, error: type[Exception]
) -> None:
    with (
        start_proxy(server.port, seed) as proxy,
        SyncClient(proxy.url, prefix=prefix, timeout=0.5) as client,
    ):
        queue = client.queue("q")
        queue.dispatch(1)
        proxy.tell(order)
        with pytest.raises(error):
            queue.counts()
        proxy.tell("calm")
        assert queue.counts().waiting == 1
