"""Work queues of redis-work-queue, shared with its libraries for Python, Node, Rust, Go and C#.

    from queasy.interop import workqueue

    frames = workqueue.Queue(client, "frames")
    await frames.add_item(workqueue.Item(b"..."))
    item = await frames.lease(30, timeout=5)
    assert await frames.complete(item)

With a `SyncClient` the same methods need no `await`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, get_args

from queasy.codec import JsonCodec
from queasy.errors import InvalidOption, InvalidPayload, UndecodablePayload
from queasy.interop.dialect import Counts, Held
from queasy.interop.taking import take_one
from queasy.interop.verbs import C, ForeignQueue, verb
from queasy.interop.workqueue_protocol import Layout, WorkQueueDialect
from queasy.operation import Operation
from queasy.options import Seconds, check_bool, check_known_id, seconds
from queasy.requests import check_lease

__all__ = ["Counts", "Item", "Layout", "Queue"]

SETTLE_SECONDS = 0.5
JSON = JsonCodec()


@dataclass(frozen=True, init=False, slots=True)
class Item:
    """One piece of work: an id and bytes. Without an `id`, it gets a random UUID.

    If equal work may be added twice, derive the id from the work: then it is done once.
    """

    data: bytes
    id: str

    def __init__(self, data: bytes | bytearray | memoryview | str, id: str | None = None) -> None:  # noqa: A002 - the word of the protocol
        if isinstance(data, str):
            data = data.encode()
        if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidPayload(f"data: expected bytes or text, got {type(data).__name__}")
        object.__setattr__(self, "data", bytes(data))
        object.__setattr__(self, "id", str(uuid.uuid4()) if id is None else check_known_id(id))

    @classmethod
    def from_json_data(cls, data: Any, id: str | None = None) -> Item:  # noqa: A002
        """An item that holds `data` as JSON."""
        try:
            return cls(JSON.encode(data), id)
        except (TypeError, ValueError, RecursionError, OverflowError) as problem:
            raise InvalidPayload(f"data: cannot be encoded as JSON: {problem}") from problem

    def data_json(self) -> Any:
        """The data, read as JSON."""
        try:
            return JSON.decode(self.data)
        except ValueError as problem:
            raise UndecodablePayload(f"item {self.id!r}: expected JSON: {problem}") from problem


class Queue(ForeignQueue[C]):
    """One work queue, by the `prefix` of its keys. Its methods are those of redis-work-queue.

    Every method is one atomic function on the server, or a sequence of them (`lease`, the cleans).
    Any process may die at any point: an item that was added is done at least once, if cleans run.

    `layout` says how a lease is written: "document" as `<prefix>:lease:<id>`, which is what the
    protocol's document says; "published" as `<prefix>:leased_by_session:<id>`, which the packages
    up to 0.1.5 write. Choose what the other workers of the queue use. Leases of both kinds are
    respected. "published" also counts completions as these packages do, so that one of several
    workers that complete an item is the first, whichever library it uses.
    """

    def __init__(self, client: C, prefix: str, *, layout: Layout = "document") -> None:
        super().__init__(client, prefix)
        if layout not in get_args(Layout):
            raise InvalidOption(f"layout: expected 'document' or 'published', got {layout!r}")
        self._dialect = WorkQueueDialect(self.prefix, layout)

    @verb
    def add_item(self, item: Item) -> Operation[bool]:
        """Add an item, unless one with this id is there and not completed: then False."""
        return (yield self._dialect.put(*self._checked(item)))

    @verb
    def add_unique_item(self, item: Item) -> Operation[bool]:
        """Add an item whose id is new.

        The protocol has this verb because other libraries need further round trips to look for the
        id. Here that is part of the one call, so it is done, too: an id that is there is not added
        twice, and the result is False.
        """
        return (yield self._dialect.put(*self._checked(item)))

    @verb
    def lease(
        self,
        seconds: Seconds,  # the word of the protocol
        block: bool = True,
        timeout: Seconds | None = None,
    ) -> Operation[Item | None]:
        """Take the oldest item for some seconds, or None if there is none.

        With `block`, wait for an item up to `timeout` seconds; None or 0: without a limit, as in
        the other libraries. The wait takes nothing, and taking an item and leasing it are one step,
        so the caller may die or be cancelled at any point. Workers of other libraries that wait for
        the same item get it first.

        An item that is not completed in time is given to another worker after a clean.
        """
        length = check_lease(seconds)
        wait = check_timeout(timeout) if check_bool(block, "block") else 0.0
        held: Held | None = yield from take_one(self._dialect, self._store, length, wait)
        return None if held is None else Item(held.data, held.id)

    @verb
    def complete(self, item: Item) -> Operation[bool]:
        """Remove an item: it is done. True for the first caller only."""
        return (yield self._dialect.finish(Held(check_item(item).id, b"", "")))

    @verb
    def light_clean(self, *, settle: Seconds = SETTLE_SECONDS) -> Operation[int]:
        """Return the items whose workers died to the queue; how many. Run it about as often as the
        shortest lease ends.

        An item counts as abandoned if its lease is over. It must look so twice, `settle` seconds
        apart, since workers of other libraries take an item first and lease it in a later call.
        """
        length = check_settle(settle)
        return (yield from self._dialect.clean(deep=False, settle=length))

    @verb
    def deep_clean(self, *, settle: Seconds = SETTLE_SECONDS) -> Operation[int]:
        """The same for all items, also those that a worker or cleaner of another library lost from
        the lists because it died between two calls. Run it seldom.

        It goes through the keys of the whole database, a thousand at a time (SCAN, never KEYS). It
        needs memory for the ids of the items that it meets.
        """
        length = check_settle(settle)
        return (yield from self._dialect.clean(deep=True, settle=length))

    @verb
    def queue_len(self) -> Operation[int]:
        """How many items wait."""
        counts: Counts = yield self._dialect.counts()
        return counts.waiting

    @verb
    def processing(self) -> Operation[int]:
        """How many items are leased, or wait to be cleaned."""
        counts: Counts = yield self._dialect.counts()
        return counts.active

    @verb
    def counts(self) -> Operation[Counts]:
        """Both numbers at one point in time, for autoscaling."""
        return (yield self._dialect.counts())

    def _checked(self, item: Item) -> tuple[str, bytes]:
        size = len(check_item(item).data)
        if size > self._max_payload:
            raise InvalidPayload(
                f"item {item.id!r}: expected at most {self._max_payload} bytes, got {size}; raise "
                "Client(max_payload=...) if the queue is to hold so much"
            )
        return item.id, item.data


def check_item(value: object) -> Item:
    if not isinstance(value, Item):
        raise InvalidPayload(f"item: expected a workqueue.Item, got {type(value).__name__}")
    return value


def check_timeout(value: Seconds | None) -> float | None:
    """How long to wait. 0 means no limit in this protocol."""
    return None if value is None else seconds(value, "timeout") or None


def check_settle(value: Seconds) -> float:
    return seconds(value, "settle")
