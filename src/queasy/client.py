"""A client: where the server is, and the queues on it."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from queasy.codec import Codec, CodecName
from queasy.dispatch import new_id
from queasy.errors import InvalidOption
from queasy.options import check_name, seconds
from queasy.queue import Queue, keys_of
from queasy.store.store import AsyncStore
from queasy.store.url import Target, parse_url

__all__ = ["Client"]

MAX_PAYLOAD = 1024 * 1024


def check_folder(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise InvalidOption(f"folder: expected a path, got {value!r}")
    return Path(value)


class Settings:
    """The arguments of a client, checked; the same for both kinds."""

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "queasy",
        timeout: float = 10.0,
        max_payload: int = MAX_PAYLOAD,
        folder: str | Path | None = None,
    ) -> None:
        if not isinstance(max_payload, int) or isinstance(max_payload, bool) or max_payload < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"max_payload: expected bytes, 1 or more, got {max_payload!r}")
        self.timeout = seconds(timeout, "timeout")
        if self.timeout <= 0:
            raise InvalidOption(f"timeout: expected more than 0 seconds, got {timeout!r}")
        self.prefix = check_name(prefix, "prefix")
        self.max_payload = max_payload
        self.folder = check_folder(folder)
        if url is not None and folder is not None:
            raise InvalidOption("expected a url or a folder (for the embedded server), got both")
        if url is None and folder is None:  # who names a folder wants the embedded server
            url = os.environ.get("QUEASY_URL") or None
        self.target = Target("embedded") if url is None else parse_url(url)

    def __str__(self) -> str:
        where = (self.folder or Path(".queasy")).absolute()
        return f"{self.target} in {where}" if self.target.kind == "embedded" else f"{self.target}"


class Client:
    """A connection with an identity.

    `url` is redis://, rediss:// (TLS), unix://, redis+sentinel://host,host/service or
    redis+cluster://host,host. Without one it is taken from QUEASY_URL, and without that, or
    with a `folder`, an embedded server keeps the jobs there (default ./.queasy).

    `prefix` begins every key. `timeout` is how many seconds a call may take, a server that
    is away included. `max_payload` bounds a job's encoded data, in bytes.

        async with Client() as client:
            emails = client.queue("emails")
            await emails.dispatch({"to": "x@example.org"})
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "queasy",
        timeout: float = 10.0,
        max_payload: int = MAX_PAYLOAD,
        folder: str | Path | None = None,
    ) -> None:
        self._settings = Settings(
            url, prefix=prefix, timeout=timeout, max_payload=max_payload, folder=folder
        )
        self._store = AsyncStore(
            self._settings.target, self._settings.timeout, self._settings.folder
        )
        self.id = new_id()

    def queue(self, name: str, codec: CodecName | Codec = "json") -> Queue:
        """The queue of this name. It needs no creating: the first dispatch does.

        `codec` is "json", "raw" (bytes, untouched) or an object with encode and decode.
        """
        keys = keys_of(self._settings.prefix, name)
        return Queue(keys, codec, self._settings.max_payload, self._store, self.id)

    async def connect(self) -> None:
        """Connect and look at the server now, rather than at the first call."""
        await self._store.connect()

    async def close(self) -> None:
        """Send what is being dispatched, then close every connection.

        A client that is used again connects again.
        """
        await self._store.close()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self._settings}>"
