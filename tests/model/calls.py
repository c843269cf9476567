"""Short forms of the calls that most tests make, on the server and on the model."""

from __future__ import annotations

from tests.model.pair import Pair
from tests.model.values import Ending, Item

T = 1_760_000_000_000.0
"""A time to start from, in milliseconds."""


def dispatch(pair: Pair, now: float, *ids: str) -> None:
    pair.run("dispatch", "main", now, items=[Item(id_, b"1") for id_ in ids])


def dequeue(
    pair: Pair, now: float, client: str, limit: int, *endings: Ending, lease: int = 60_000
) -> list[tuple[str, str]]:
    """The id and the token of each job."""
    reply = pair.run(
        "dequeue", "main", now, client=client, lease=lease, limit=limit, request="",
        waiter="", waits=0, endings=endings,
    )  # fmt: skip
    return [(id_, str(token)) for id_, token, *_ in reply[3]]


def settle(pair: Pair, now: float, *endings: Ending) -> None:
    pair.run("settle", "main", now, endings=endings)
