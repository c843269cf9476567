"""One connection in an event loop: calls out, answers back in the order of the calls.

For many small calls at a time: those of one pass of the loop leave in one write, and an answer
goes from the parser straight to whoever awaits it. What a call came to is never guessed: of a
connection that breaks, what had been written is `Lost`, and what had not is `NotSent`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from queasy.store.net.connection import INCOMPLETE, Endpoint, RawCommands, new_reader, pack, welcome
from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.server_errors import ProtocolError, ResponseError

__all__ = ["Wire"]

READ_BUFFER_BYTES = 128 * 1024  # bytes at a time
MAX_WRITE_BYTES = 64 * 1024  # bytes in one piece, if they are many small calls
# So many calls are on their way at most. Should the connection break, what became of them is
# unknown; of those that wait it is known.
MAX_CALLS_IN_FLIGHT = 1000
# For an answer that is there already: a loop that was held up runs its timers before it reads.
LATE_READ_SECONDS = 0.05


class _PendingCall:
    """RawCommands that were, or are yet to be, written; and whoever awaits the answers."""

    __slots__ = ("answer", "awaited", "deadline", "packed", "replies")

    def __init__(
        self, packed: bytes, awaited: int, answer: asyncio.Future[list[Any]], deadline: float
    ) -> None:
        self.packed = packed
        self.awaited = awaited
        self.answer = answer
        self.deadline = deadline
        self.replies: list[Any] = []

    def fail(self, problem: Exception, cause: BaseException | None = None) -> None:
        if not self.answer.done():
            if cause is not None:
                problem.__cause__ = cause
            self.answer.set_exception(problem)


class Wire(asyncio.BufferedProtocol):
    """Used from the moment it is made; what is put on it before it is open waits.

    `heard` is called with what the server says without being asked, which is an error for who
    does not expect it; `lost` when the connection ends by itself.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        heard: Callable[[Any], None] | None = None,
        lost: Callable[[Exception], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._heard = heard or self._unasked
        self._lost = lost
        self._reader = new_reader()
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._view = memoryview(self._buffer)  # slices of it must not be copies
        self._transport: Any = None
        self._unsent: deque[_PendingCall] = deque()
        self._sent: deque[_PendingCall] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._opening: asyncio.Task[Any] | None = None
        self._flushing = False
        self._retired = False
        self.greeted = False
        self.ready = False
        """It was greeted, and takes what is written."""
        self.over: Exception | None = None
        """Why nothing more can be put on it."""
        self.gone = self._loop.create_future()
        """Done when the socket is closed."""

    # Opening and ending

    def begin(self) -> None:
        """Opens in the background; whoever put something on it is told how that ended."""
        self._opening = self._loop.create_task(self._open_quietly())

    async def _open_quietly(self) -> None:
        with contextlib.suppress(NotSent, ResponseError):  # told already
            await self.open()

    async def open(self) -> None:
        """Connects and greets the server."""
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(endpoint.limit):
                await self._connect()
                if not self._given_up():  # told off before it could say a word
                    await self._greet()
        except (Lost, NotSent) as problem:
            self._end(str(problem), problem)
        except ResponseError as refusal:
            self._end(str(refusal), refusal=refusal)
        except Exception as problem:
            self._end(endpoint.why(problem), problem)
        except BaseException:
            self._end("closed")
            raise
        if self.over is not None and self._given_up():
            raise self.over
        self.greeted = self.ready = True
        self._flush()
        if self._retired:
            self._close_if_done()

    async def _greet(self) -> None:
        words = self._endpoint.greeting()
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._write([_PendingCall(pack(words), len(words), answer, self._deadline())])
        welcome(await answer)

    async def _connect(self) -> None:
        endpoint, address = self._endpoint, self._endpoint.address
        if address.path:
            await self._loop.create_unix_connection(lambda: self, address.path)
            return
        await self._loop.create_connection(
            lambda: self, address.host, address.port, ssl=endpoint.context()
        )
        endpoint.prepare(self._transport.get_extra_info("socket"))

    def end(self, why: str = "closed") -> None:
        """At once; whoever awaits an answer is told that there will be none."""
        self._lost = None
        self._end(why)

    def retire(self) -> None:
        """Takes nothing more, and ends with the last answer."""
        if self.over is None:
            self._retired = True
            self.over = NotSent("closed")
            self._close_if_done()

    def _end(
        self, why: str, cause: BaseException | None = None, refusal: Exception | None = None
    ) -> None:
        sent, unsent = self._sent, self._unsent
        self._sent, self._unsent = deque(), deque()
        self.ready = False
        if not self._given_up():
            self._retired = False
            self.over = refusal or NotSent(why)
            self.over.__cause__ = cause if refusal is None else refusal.__cause__
            for call in sent:
                call.fail(Lost(why), cause)
            for call in unsent:
                call.fail(refusal or NotSent(why), None if refusal else cause)
            if self._lost is not None:
                self._lost(self.over)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        elif not self.gone.done():
            self.gone.set_result(None)
        if self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()
        self._opening = None

    def _given_up(self) -> bool:
        """Whether it is over also for those who are on it."""
        return self.over is not None and not self._retired

    def _close_if_done(self) -> None:
        if not self._sent and not self._unsent:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._transport is None:
                self._end("closed")
            else:
                self._transport.close()

    # Calling

    def call(
        self, packed: bytes, awaited: int, deadline: float | None = None
    ) -> asyncio.Future[list[Any]]:
        """Puts packed commands on the wire; the future has so many replies.

        Who has lost interest cancels it, and harms nobody else.
        """
        if self.over is not None:
            raise NotSent(str(self.over)) from self.over
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        call = _PendingCall(packed, awaited, answer, deadline or self._deadline())
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline, self._look_for_late)
        idle = self.ready and not self._sent and not self._unsent
        if idle and not self._transport.is_closing():
            self._write([call])  # nobody to wait for: who calls one by one saves a pass
            return answer
        self._unsent.append(call)
        if self.ready and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return answer

    def tell(self, commands: RawCommands) -> None:
        """Writes what is answered, if at all, to `heard`."""
        if self.over is None:
            self._transport.write(pack(commands))

    def _deadline(self) -> float:
        return self._loop.time() + self._endpoint.limit

    def _flush(self) -> None:
        """Writes as much of what is unsent as the other side takes."""
        self._flushing = False
        unsent = self._unsent
        while unsent and self.ready and not self._transport.is_closing():
            calls: list[_PendingCall] = []
            size, room = 0, MAX_CALLS_IN_FLIGHT - len(self._sent)
            if room <= 0:
                return
            while unsent and size < MAX_WRITE_BYTES and len(calls) < room:
                call = unsent.popleft()
                if not call.answer.done():  # else its caller has gone, and it never left
                    calls.append(call)
                    size += len(call.packed)
            self._write(calls)

    def _write(self, calls: list[_PendingCall]) -> None:
        if not calls:
            return
        self._sent.extend(calls)
        data = calls[0].packed if len(calls) == 1 else b"".join([call.packed for call in calls])
        for call in calls:
            call.packed = b""
        self._transport.write(data)

    def _look_for_late(self) -> None:
        """One timer for all: the oldest is the first to be late."""
        self._timer = None
        unsent = self._unsent
        while unsent and unsent[0].answer.done():
            unsent.popleft()
        oldest = self._sent[0] if self._sent else unsent[0] if unsent else None
        if oldest is None:
            self._late = False
            return
        if oldest.deadline > self._loop.time():
            self._late = False
            self._timer = self._loop.call_at(oldest.deadline, self._look_for_late)
        elif not self._late:
            self._late = True
            self._timer = self._loop.call_later(LATE_READ_SECONDS, self._look_for_late)
        else:
            self._end(self._endpoint.late, TimeoutError())

    # What the event loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._given_up():  # meanwhile
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        reader, sent = self._reader, self._sent
        reader.feed(self._buffer, 0, nbytes)  # pyright: ignore[reportArgumentType]
        try:
            while (reply := reader.gets()) is not INCOMPLETE:
                if not sent:
                    self._heard(reply)
                    if self.over is not None:
                        return
                    continue
                call = sent[0]
                call.replies.append(reply)
                if len(call.replies) == call.awaited:
                    sent.popleft()
                    if not call.answer.done():
                        call.answer.set_result(call.replies)
        except ProtocolError as problem:
            self._end(str(problem), problem)
        if self._unsent and not self._flushing:
            self._flush()
        if self._retired:
            self._close_if_done()

    def _unasked(self, reply: Any) -> None:
        """Says why it hangs up, most likely; anything else would be taken for an answer."""
        why = str(reply) if isinstance(reply, Exception) else "an answer that nobody asked for"
        self._end(why, refusal=reply if isinstance(reply, ResponseError) else None)

    def pause_writing(self) -> None:
        self.ready = False

    def resume_writing(self) -> None:
        if self.greeted and not self._given_up():
            self.ready = True
            self._flush()

    def eof_received(self) -> None:
        self._end("Connection closed by server")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "") or "Connection closed by server", exc)
        if not self.gone.done():
            self.gone.set_result(None)
