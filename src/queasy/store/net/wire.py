"""One connection in an event loop. Replies arrive in the order of the calls.

It is made for many small calls at a time: the calls of one pass of the loop are sent in one write,
and a reply goes from the parser directly to the future of its call. When the connection breaks,
calls that had been written fail with `Lost`, and calls that had not with `NotSent`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from queasy.store.net.connection import (
    INCOMPLETE,
    Endpoint,
    RawCommands,
    check_greeting,
    new_reader,
    pack,
)
from queasy.store.net.faults import Lost, NotSent
from queasy.store.net.server_errors import ProtocolError, ResponseError

__all__ = ["Wire"]

READ_BUFFER_BYTES = 128 * 1024
MAX_WRITE_BYTES = 64 * 1024  # of many small calls in one write; a larger call is not split
# If the connection breaks, the result of every call in flight is unknown. So no more than this many
# are in flight. The others wait, and if it breaks they are known not to have been sent.
MAX_CALLS_IN_FLIGHT = 1000
# A late reply is still read for this long: a loop that was blocked runs its timers before it reads.
LATE_READ_SECONDS = 0.05


class _PendingCall:
    """Commands that were written or wait to be, and the future of their replies."""

    __slots__ = ("answer", "deadline", "packed", "replies", "reply_count")

    def __init__(
        self, packed: bytes, reply_count: int, answer: asyncio.Future[list[Any]], deadline: float
    ) -> None:
        self.packed = packed
        self.reply_count = reply_count
        self.answer = answer
        self.deadline = deadline
        self.replies: list[Any] = []

    def take_packed(self) -> bytes:
        """The bytes to write. They are not kept: replies may take long, and calls be large."""
        packed, self.packed = self.packed, b""
        return packed

    def fail(self, problem: Exception, cause: BaseException | None = None) -> None:
        if not self.answer.done():
            if cause is not None:
                problem.__cause__ = cause
            self.answer.set_exception(problem)


class Wire(asyncio.BufferedProtocol):
    """A connection that can be used at once; calls wait until it is open.

    `on_push` is called with what the server sends without a call; without it, such a message ends
    the connection. `on_lost` is called when the connection ends and `end` was not called.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_push: Callable[[Any], None] | None = None,
        on_lost: Callable[[Exception], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.endpoint = endpoint
        self._on_push = on_push or self._unexpected
        self._on_lost = on_lost
        self._reader = new_reader()
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._view = memoryview(self._buffer)  # a slice of a bytearray would be a copy
        self._transport: Any = None
        self._unsent: deque[_PendingCall] = deque()
        self._sent: deque[_PendingCall] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        """The oldest call is past its deadline, and has LATE_READ_SECONDS more."""
        self._opening: asyncio.Task[Any] | None = None
        self._flushing = False
        self._retired = False
        self.greeted = False
        self.ready = False
        """The greeting was answered, and the socket accepts writes."""
        self.closing_error: Exception | None = None
        """Why no more calls are accepted; None while they are."""
        self.gone = self._loop.create_future()
        """Done when the socket is closed."""

    # Opening and ending

    def begin(self) -> None:
        """Opens the connection in the background; if that fails, the calls that wait fail."""
        self._opening = self._loop.create_task(self._open_quietly())

    async def _open_quietly(self) -> None:
        with contextlib.suppress(NotSent, ResponseError):  # the calls have failed with it
            await self.open()

    async def open(self) -> None:
        """Connects and greets the server."""
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(endpoint.limit):
                await self._connect()
                if not self._has_ended():  # ended while connecting
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
        if self.closing_error is not None and self._has_ended():
            raise self.closing_error
        self.greeted = self.ready = True
        self._flush()
        if self._retired:
            self._close_if_done()

    async def _greet(self) -> None:
        words = self.endpoint.greeting()
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._write([_PendingCall(pack(words), len(words), answer, self._deadline())])
        check_greeting(await answer)

    async def _connect(self) -> None:
        endpoint, address = self.endpoint, self.endpoint.address
        if address.path:
            await self._loop.create_unix_connection(lambda: self, address.path)
            return
        await self._loop.create_connection(
            lambda: self, address.host, address.port, ssl=endpoint.context()
        )
        endpoint.prepare(self._transport.get_extra_info("socket"))

    def end(self, why: str = "closed") -> None:
        """Ends the connection at once; calls without a reply fail."""
        self._on_lost = None
        self._end(why)

    def cut(self, why: str) -> None:
        """Ends the connection as if the server had ended it: `on_lost` is called."""
        self._end(why)

    def retire(self) -> None:
        """Accepts no more calls, and ends after the last reply."""
        if self.closing_error is None:
            self._retired = True
            self.closing_error = NotSent("closed")
            self._close_if_done()

    def _end(
        self, why: str, cause: BaseException | None = None, refusal: Exception | None = None
    ) -> None:
        sent, unsent = self._sent, self._unsent
        self._sent, self._unsent = deque(), deque()
        self.ready = False
        if not self._has_ended():
            self._retired = False
            self.closing_error = refusal or NotSent(why)
            self.closing_error.__cause__ = cause if refusal is None else refusal.__cause__
            for call in sent:
                call.fail(Lost(why), cause)
            for call in unsent:
                call.fail(refusal or NotSent(why), None if refusal else cause)
            if self._on_lost is not None:
                self._on_lost(self.closing_error)
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

    def _has_ended(self) -> bool:
        """Whether no reply can come any more. A retired connection still awaits replies."""
        return self.closing_error is not None and not self._retired

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
        self, packed: bytes, reply_count: int, deadline: float | None = None
    ) -> asyncio.Future[list[Any]]:
        """Sends packed commands; the future's result is a list of `reply_count` replies.

        Cancelling the future does not affect other calls.
        """
        if self.closing_error is not None:
            raise NotSent(str(self.closing_error)) from self.closing_error
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        call = _PendingCall(packed, reply_count, answer, deadline or self._deadline())
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline, self._check_deadlines)
        idle = self.ready and not self._sent and not self._unsent
        if idle and not self._transport.is_closing():
            self._write([call])  # at once: it need not wait a pass of the loop for others
            return answer
        self._unsent.append(call)
        if self.ready and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return answer

    def send(self, commands: RawCommands) -> None:
        """Sends commands; their replies, if any, go to `on_push`."""
        if self.closing_error is None:
            self._transport.write(pack(commands))

    def _deadline(self) -> float:
        return self._loop.time() + self.endpoint.limit

    def _flush(self) -> None:
        """Writes as many of the waiting calls as the server accepts."""
        self._flushing = False
        unsent = self._unsent
        while unsent and self.ready and not self._transport.is_closing():
            calls: list[_PendingCall] = []
            size, room = 0, MAX_CALLS_IN_FLIGHT - len(self._sent)
            if room <= 0:
                return
            while unsent and size < MAX_WRITE_BYTES and len(calls) < room:
                call = unsent.popleft()
                if not call.answer.done():  # done: it was cancelled, and need not be sent
                    calls.append(call)
                    size += len(call.packed)
            self._write(calls)

    def _write(self, calls: list[_PendingCall]) -> None:
        if not calls:
            return
        self._sent.extend(calls)
        if len(calls) == 1:
            self._transport.write(calls[0].take_packed())
        else:
            self._transport.write(b"".join([call.take_packed() for call in calls]))

    def _check_deadlines(self) -> None:
        """Ends the connection when the oldest call is late. One timer serves all calls."""
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
            self._timer = self._loop.call_at(oldest.deadline, self._check_deadlines)
        elif not self._late:
            self._late = True
            self._timer = self._loop.call_later(LATE_READ_SECONDS, self._check_deadlines)
        else:
            self._end(self.endpoint.late, TimeoutError())

    # Callbacks of the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._has_ended():  # while connecting
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        reader, sent = self._reader, self._sent
        reader.feed(self._buffer, 0, nbytes)  # pyright: ignore[reportArgumentType]
        try:
            while (reply := reader.gets()) is not INCOMPLETE:
                if not sent:
                    self._on_push(reply)
                    if self.closing_error is not None:
                        return
                    continue
                call = sent[0]
                call.replies.append(reply)
                if len(call.replies) == call.reply_count:
                    sent.popleft()
                    if not call.answer.done():
                        call.answer.set_result(call.replies)
        except ProtocolError as problem:
            self._end(str(problem), problem)
        if self._unsent and not self._flushing:
            self._flush()
        if self._retired:
            self._close_if_done()

    def _unexpected(self, reply: Any) -> None:
        """Ends the connection: the server most likely says why it closes it. If not, the message
        would be mistaken for the reply to the next call.
        """
        why = str(reply) if isinstance(reply, Exception) else "a reply without a call"
        self._end(why, refusal=reply if isinstance(reply, ResponseError) else None)

    def pause_writing(self) -> None:
        self.ready = False

    def resume_writing(self) -> None:
        if self.greeted and not self._has_ended():
            self.ready = True
            self._flush()

    def eof_received(self) -> None:
        self._end("Connection closed by server")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "") or "Connection closed by server", exc)
        if not self.gone.done():
            self.gone.set_result(None)
