"""Connections: each call gets its own answer, or an error that says whether it was sent."""

import asyncio
import gc
import random
import re
import select
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from queasy.store.net.connection import Endpoint, pack
from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.pool import LARGE_CALL_BYTES, AsyncTransport
from queasy.store.net.server_errors import AuthenticationError
from queasy.store.net.topology import Effect, Exchange, HangUp
from queasy.store.net.url import Address, parse_url
from queasy.store.net.wire import MAX_CALLS_IN_FLIGHT, Wire
from tests.servers import HOST, Server, ServerKind, wait_until
from tests.worker.fleet import ON_ONE_SERVER

pytestmark = ON_ONE_SERVER
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, kind: ServerKind) -> Run:
    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(work, 30))
        gc.collect()  # a connection that was not closed is an error

    return run


def endpoint_of(server: Server, limit: float = 5.0, **options: Any) -> Endpoint:
    target = parse_url(server.admin_url)
    endpoint = Endpoint.to(target, target.addresses[0], limit, False)
    return Endpoint(endpoint.address, {**endpoint.options, **options}, endpoint.tls, limit)


@asynccontextmanager
async def opened(endpoint: Endpoint) -> AsyncGenerator[Wire]:
    wire = Wire(endpoint)
    wire.begin()
    try:
        yield wire
    finally:
        wire.end()
        await wire.gone


def echo(wire: Wire, text: str) -> asyncio.Future[list[Any]]:
    return wire.call(pack([("ECHO", text)]), 1)


def types_of(answers: list[Any]) -> list[type]:
    return [type(answer) for answer in answers]


async def gather(calls: list[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def exchange(*exchanges: Effect) -> Generator[Effect, Any, Any]:
    answer: Any = None
    for one in exchanges:
        answer = yield one
    return answer


def test_each_call_gets_its_own_answer_and_calls_of_one_pass_share_a_write(
    run: Run, server: Server
) -> None:
    def reads() -> int:
        return int(server.call("INFO", "stats")["total_reads_processed"])

    async def work() -> None:
        async with opened(endpoint_of(server)) as wire:
            assert await echo(wire, "first") == [b"first"]
            before = reads()
            answers = await gather([echo(wire, str(number)) for number in range(1000)])
            assert answers == [[str(number).encode()] for number in range(1000)]
            assert reads() - before < 20
            assert await wire.call(pack([("PING",), ("NONSENSE",), ("ECHO", 1)]), 3) != []

    run(work())


def test_a_cancelled_call_does_not_affect_the_others(run: Run, server: Server) -> None:
    async def work() -> None:
        chance = random.Random(1)
        async with opened(endpoint_of(server)) as wire:
            for _ in range(20):
                calls = [echo(wire, str(number)) for number in range(200)]
                gone = chance.sample(calls, 60)
                for call in gone[:30]:  # not yet written, except for the first
                    call.cancel()
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                for call in gone[30:]:  # written, or answered
                    call.cancel()
                answers = await gather(calls)
                for number, answer in enumerate(answers):
                    if answer != [str(number).encode()]:
                        assert calls[number] in gone
                        assert isinstance(answer, asyncio.CancelledError)

    run(work())


class Fake(asyncio.Protocol):
    """A server that greets, reads `takes` bytes, answers `answers` commands, then does nothing."""

    def __init__(self, takes: int, answers: int = 0) -> None:
        self.takes = takes
        self.answers = answers
        self.got = bytearray()
        self.full = asyncio.Event()
        self.left = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if b"SETNAME" in data:
            data = data.partition(b"queasy\r\n")[2]
            self.transport.write(b"+OK\r\n")
        self.got += data
        if self.answers and data:
            self.answers -= 1
            self.transport.write(b"+yes\r\n")
        if len(self.got) >= self.takes and not self.full.is_set():
            self.transport.pause_reading()
            self.full.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()

    @asynccontextmanager
    async def serving(self, limit: float = 10.0) -> AsyncGenerator[Endpoint]:
        served = await asyncio.get_running_loop().create_server(lambda: self, HOST, 0)
        try:
            yield Endpoint(Address(HOST, served.sockets[0].getsockname()[1]), {}, False, limit)
        finally:
            self.transport.abort()
            served.close()
            await served.wait_closed()


def test_when_a_connection_breaks_written_calls_are_lost_and_the_rest_not_sent(
    run: Run,
) -> None:
    async def work() -> None:
        fake = Fake(takes=3_000_000)
        async with fake.serving() as endpoint, opened(endpoint) as wire:
            texts = [f"<{number}>" + "x" * 40_000 for number in range(1000)]
            calls = [echo(wire, text) for text in texts]
            await fake.full.wait()
            # Both socket buffers are full: the rest of the calls wait.
            for call in calls[-3:]:
                call.cancel()
            fake.transport.abort()
            answers = await gather(calls)
            lost = [number for number, answer in enumerate(answers) if type(answer) is Lost]
            unsent = [number for number, answer in enumerate(answers) if type(answer) is NotSent]
            assert lost == list(range(len(lost)))
            assert len(lost) + len(unsent) == 997
            assert unsent, "expected calls that were not sent, or the test shows nothing"
            arrived = {int(number) for number in re.findall(rb"<(\d+)>", fake.got)}
            assert arrived
            assert arrived <= set(lost)
            assert wire.closing_error is not None

    run(work())


def test_the_calls_in_flight_are_bounded(run: Run) -> None:
    async def work() -> None:
        fake = Fake(takes=10**9)
        async with fake.serving() as endpoint, opened(endpoint) as wire:
            calls = [echo(wire, "a") for _ in range(3 * MAX_CALLS_IN_FLIGHT)]
            while fake.got.count(b"ECHO") < MAX_CALLS_IN_FLIGHT:
                await asyncio.sleep(0.001)
            fake.transport.write(b"+yes\r\n" * 500)  # each answer makes room for another call
            while fake.got.count(b"ECHO") < MAX_CALLS_IN_FLIGHT + 500:
                await asyncio.sleep(0.001)
            fake.transport.abort()
            answers = await gather(calls)
            assert (
                types_of(answers) == [list] * 500 + [Lost] * MAX_CALLS_IN_FLIGHT + [NotSent] * 1500
            )

    run(work())


def test_a_late_answer_ends_the_connection(run: Run) -> None:
    async def work() -> None:
        fake = Fake(takes=10_000, answers=1)
        async with fake.serving(limit=0.3) as endpoint, opened(endpoint) as wire:
            assert await echo(wire, "first") == [b"yes"]
            began = time.monotonic()
            calls = [echo(wire, "silence") for _ in range(3)]
            await asyncio.sleep(0)
            calls += [echo(wire, "later") for _ in range(3)]
            answers = await gather(calls)
            assert types_of(answers) == [Lost] * 6
            assert "no answer in 0.3 s" in str(answers[0])
            assert time.monotonic() - began >= 0.3
            await fake.left.wait()
            with pytest.raises(NotSent, match=r"no answer in 0\.3 s"):
                echo(wire, "too late")

    run(work())


def test_answer_received_while_the_loop_was_blocked_is_not_late(run: Run, server: Server) -> None:
    async def work() -> None:
        async with opened(endpoint_of(server, limit=0.2)) as wire:
            await echo(wire, "first")
            calls = [echo(wire, "a"), echo(wire, "b")]
            await asyncio.sleep(0)
            # Block the loop, as a computing handler does, while the answers arrive.
            select.select([wire._transport.get_extra_info("socket").fileno()], [], [])
            time.sleep(0.4)
            assert await gather(calls) == [[b"a"], [b"b"]]

    run(work())


def test_no_call_is_sent_before_the_greeting_is_answered(run: Run, server: Server) -> None:
    async def work() -> None:
        wrong = endpoint_of(server, username="nobody", password="wrong")
        async with opened(wrong) as wire:
            answers = await gather([echo(wire, "a") for _ in range(3)])
            assert types_of(answers) == [AuthenticationError] * 3
        nowhere = Endpoint(Address(path="/nowhere/at/all"), {}, False, 5.0)
        async with opened(nowhere) as wire:
            (answer,) = await gather([echo(wire, "a")])
            assert type(answer) is NotSent
            assert isinstance(answer.__cause__, FileNotFoundError)
        fake = Fake(takes=1)
        fake.data_received = lambda data: None
        async with fake.serving(limit=0.2) as silent, opened(silent) as wire:
            assert types_of(await gather([echo(wire, "a")])) == [NotSent]
        fake.data_received = lambda data: fake.transport.write(
            b"-ERR max number of clients reached\r\n"
        )
        async with fake.serving() as full, opened(full) as wire:
            (answer,) = await gather([echo(wire, "a")])
            assert type(answer) is NotSent
            assert "max number of clients" in str(answer)

    run(work())


def test_a_reply_without_a_call_ends_the_connection(run: Run) -> None:
    async def work() -> None:
        fake = Fake(takes=10_000, answers=1)
        async with fake.serving() as endpoint, opened(endpoint) as wire:
            assert await echo(wire, "first") == [b"yes"]
            fake.transport.write(b"+and another\r\n")
            await fake.left.wait()
            assert "a reply without a call" in str(wire.closing_error)

    run(work())


def test_a_wire_cancelled_while_connecting_leaves_no_connection(run: Run, server: Server) -> None:
    def connections() -> int:
        return server.call("CLIENT", "LIST").count("name=queasy")

    async def work() -> None:
        for turns in range(12):
            cancelled, wire = Wire(endpoint_of(server)), Wire(endpoint_of(server))
            opening = asyncio.create_task(cancelled.open())
            wire.begin()
            call = echo(wire, "a")
            for _ in range(turns):
                await asyncio.sleep(0.0002 if turns > 6 else 0)
            opening.cancel()
            wire.end()
            with suppress(asyncio.CancelledError):
                await opening
                cancelled.end()  # it had been opened
            with suppress(NotSent, Lost):
                await call

    before = connections()
    run(work())
    wait_until(lambda: connections() <= before, "every connection is closed")


def test_large_calls_do_not_delay_small_ones(run: Run, server: Server) -> None:
    async def work() -> None:
        target = parse_url(server.admin_url)
        address = target.addresses[0]
        transport = AsyncTransport(target, 20, None, connections=4)
        large = bytes(50_000_000)
        sizes = [100, LARGE_CALL_BYTES - 100, LARGE_CALL_BYTES, LARGE_CALL_BYTES + 1, len(large)]

        async def send(size: int) -> None:
            (answer,) = await transport.run(exchange(Exchange(address, (("ECHO", large[:size]),))))
            assert answer == large[:size]

        sending = [asyncio.create_task(send(size)) for size in sizes * 2]
        small = 0
        while not all(task.done() for task in sending):
            assert await transport.run(exchange(Exchange(address, (("PING",),)))) == [b"PONG"]
            small += 1
        await asyncio.gather(*sending)
        assert small > 5
        await transport.close()

    run(work())


def test_calls_that_wait_on_the_server_do_not_delay_others(run: Run, server: Server) -> None:
    async def work() -> None:
        target = parse_url(server.admin_url)
        address = target.addresses[0]
        transport = AsyncTransport(target, 20, None, connections=4)
        before = server.call("CLIENT", "LIST").count("name=queasy")
        waits = Exchange(address, (("PING",), ("WAIT", 5, 400)), alone=True)
        waiting = [asyncio.create_task(transport.run(exchange(waits))) for _ in range(6)]
        for _ in range(3):
            await transport.run(exchange(Exchange(address, (("PING",),))))
        assert not any(task.done() for task in waiting)
        assert server.call("CLIENT", "LIST").count("name=queasy") - before <= 4
        waiting[0].cancel()  # its connection is closed, although the server still waits
        answers = await gather(waiting)
        assert answers[1:] == [[b"PONG", 0]] * 5
        await transport.close()

    run(work())


def test_calls_made_before_close_are_answered(run: Run, server: Server) -> None:
    async def work() -> None:
        target = parse_url(server.admin_url)
        ask = Exchange(target.addresses[0], (("PING",),))
        for turns in range(8):  # before connecting, while greeting, during the call
            transport = AsyncTransport(target, 20, None)
            calls = [asyncio.create_task(transport.run(exchange(ask))) for _ in range(3)]
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            await transport.close()
            assert await gather(calls) == [[b"PONG"]] * 3

    run(work())


def test_hanging_up_waits_for_answers_and_opens_one_connection(run: Run, server: Server) -> None:
    async def work() -> None:
        target = parse_url(server.admin_url)
        address = target.addresses[0]
        transport = AsyncTransport(target, 20, None)
        received = int(server.call("INFO", "stats")["total_connections_received"])

        async def call(number: int) -> None:
            ask = Exchange(address, (("ECHO", number),))
            answer = await transport.run(exchange(ask, HangUp(address), ask))
            assert answer == [str(number).encode()]

        await transport.run(exchange(Exchange(address, (("PING",),))))
        await asyncio.gather(*map(call, range(300)))
        after = int(server.call("INFO", "stats")["total_connections_received"])
        assert after - received <= 6
        await transport.close()

    run(work())


def test_a_burst_of_messages_arrives_in_order(run: Run, server: Server) -> None:
    async def work() -> None:
        target = parse_url(server.admin_url)
        transport = AsyncTransport(target, 20, None)
        received: list[Any] = []
        received_all = asyncio.Event()

        def receive(message: Any) -> None:
            received.append(message)
            if len(received) == 10_001:  # the confirmation and 10,000 messages
                received_all.set()

        lost: list[Exception] = []
        push = await transport.open_push_connection(target.addresses[0], receive, lost.append)
        push.send([("SSUBSCRIBE", "queasy:{burst}:wake")])
        async with opened(endpoint_of(server)) as wire:
            while not received:
                await asyncio.sleep(0.001)
            messages = [("SPUBLISH", "queasy:{burst}:wake", number) for number in range(10_000)]
            await wire.call(pack(messages), len(messages))
        await received_all.wait()
        assert [int(message) for _, _, message in received[1:]] == list(range(10_000))
        server.call("CLIENT", "KILL", "TYPE", "PUBSUB")
        while not lost:
            await asyncio.sleep(0.001)
        await transport.close()

    run(work())
