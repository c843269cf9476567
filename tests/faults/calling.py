"""Calls an async and a sync client in the same way."""

import asyncio
import inspect
from typing import Any

from queasy import Client, SyncClient
from tests.faults.cases import Case


class Caller:
    """A client of either kind; the sync one runs in a thread, because the proxy needs the loop."""

    def __init__(self, client: Client | SyncClient) -> None:
        self._client = client

    async def connect(self) -> None:
        await self._answer(self._client.connect)

    async def call(self, case: Case, queue: str, context: Any = None) -> Any:
        return await self._answer(lambda: case.call(self._client.queue(queue), context))

    async def counts(self, queue: str) -> Any:
        return await self._answer(self._client.queue(queue).counts)

    async def close(self) -> None:
        await self._answer(self._client.close)

    async def _answer(self, call: Any) -> Any:
        if isinstance(self._client, SyncClient):
            return await asyncio.to_thread(lambda: _listed(call()))
        answer = call()
        if inspect.isasyncgen(answer):
            return [one async for one in answer]
        return await answer


def _listed(answer: Any) -> Any:
    return list(answer) if inspect.isgenerator(answer) else answer
