"""A TCP proxy that loses answers on demand: the network's worst habit, at will."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Passes bytes to a server; `lose_answer_to` cuts the line when that call was carried out."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._doomed: list[bytes] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallowed: list[bytes] = []
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose_answer_to(self, function: str) -> None:
        """The next call of this function is carried out, and its answer lost."""
        self._doomed.append(f"queasy_v1_{function}".encode())

    def swallow(self, command: str) -> None:
        """What holds this command never arrives, and is never answered."""
        self._swallowed.append(command.encode())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._writers.add(up_writer)
        try:
            await self._relay(reader, writer, up_reader, up_writer)
        finally:
            for one in (writer, up_writer):
                one.close()
                self._writers.discard(one)
            self._tasks.discard(task)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        async def back() -> None:
            while data := await up_reader.read(65536):
                writer.write(data)
                await writer.drain()

        answers = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                if any(command in data for command in self._swallowed):
                    self.lost += 1
                    continue
                doomed = next((name for name in self._doomed if name in data), None)
                if doomed is not None:
                    self._doomed.remove(doomed)
                    self.lost += 1
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    up_writer.write(data)
                    await up_writer.drain()
                    await up_reader.read(1)  # carried out: the first byte of its answer is here
                    return
                up_writer.write(data)
                await up_writer.drain()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
