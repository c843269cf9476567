"""Writes the library of this revision, and what its clients send, beside this file.

    python -m tests.revisions

Run it once for each revision that is published, before the release. tests/faults/server/
test_revisions.py then checks that later libraries understand these calls, and that later clients
work with this library.
"""

import json
import lzma
from pathlib import Path
from typing import Any

from queasy.job import JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Fail, Finish, Release, RetryLater, TimedOut
from queasy.store import library
from queasy.store.command import Command
from queasy.store.commands import QueueCommands, version
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem, Ending, pack_options

HERE = Path(__file__).parent
# Takes the place of the token that the last dequeue returned. It has as many digits.
TOKEN = 1_876_543_210_987_654
ERROR = JobError("ValueError", "no", "retriable", "line 1")
OPTIONS = pack_options(JobOptions(max_retries=2, timeout=5), update=True)


def calls() -> list[Command[Any]]:
    """Calls of every function. Each finds the state that those before it left."""
    queue = QueueCommands(QueueKeys("old", "q"))

    def put(number: int, *items: DispatchItem) -> Command[Any]:
        return queue.dispatch(items).with_number("caller", number)

    def take(client: str, **more: Any) -> Command[Any]:
        return queue.dequeue(client, lease=30, limit=1, **more)

    def end(id_: str, outcome: Any) -> Command[Any]:
        return queue.settle([Ending(id_, TOKEN, outcome)])

    outcomes = {
        "a": Release(), "b": RetryLater(ERROR, after=60), "c": TimedOut(ERROR), "d": Fail(ERROR),
        "e": Broken(ERROR),
    }  # fmt: skip
    ended = [step for id_, how in outcomes.items() for step in _run(put, take, end, id_, how)]
    return [
        version(),
        queue.configure(limits=JobOptions(max_retries=3), failed_limit=9, paused=False),
        queue.register("worker", 30, b"{}"),
        take("worker", request="0", waiter="worker", waits=8, beside=1, accepts_hand_off=True),
        put(1, DispatchItem("one", b"1")),
        put(2, DispatchItem("two", b"2"), DispatchItem("three", b"3")),
        put(3, DispatchItem("four", b"4", "+60000", "1t10", OPTIONS)),
        queue.cancel(["two", "absent"]).with_number("caller", 4),
        take("worker", request="1", waiter="worker", waits=8),
        queue.bump(["worker", "unknown"], 30),
        queue.extend("one", TOKEN, 30),
        queue.leases("worker", b"", 10),
        queue.dequeue(
            "worker", lease=30, limit=0, request="2", endings=[Ending("one", TOKEN, Finish())]
        ),
        queue.cancel(["three", "four"]).with_number("caller", 5),
        *ended,
        queue.counts(), queue.get("d"), queue.stats(), queue.clients(), queue.audit(0, 100),
        queue.jobs("waiting", b"", 10), queue.jobs("failed", b"", 10),
        queue.requeue("failed", ["d"]).with_number("caller", 900),
        queue.drop("broken", ["e"]), queue.trim("failed", 0), queue.sweep(),
        queue.evict("worker"), queue.destroy(force=False),
    ]  # fmt: skip


def _run(put: Any, take: Any, end: Any, id_: str, how: Any) -> list[Command[Any]]:
    number = 10 + ord(id_)
    return [
        put(number, DispatchItem(id_, b"1")),
        take("worker", request=str(number)),
        end(id_, how),
    ]


def words_of(command: Command[Any]) -> list[str]:
    """The words as text, byte by byte."""
    return [
        (word if isinstance(word, bytes) else str(word).encode()).decode("latin-1")
        for word in command.words()
    ]


if __name__ == "__main__":
    revision = library.revision()
    text = library.source().encode()
    (HERE / f"{revision}.lua.xz").write_bytes(lzma.compress(text, preset=9))
    lines = ",\n".join(json.dumps(words_of(command)) for command in calls())
    (HERE / f"{revision}.calls.json").write_text(f"[\n{lines}\n]\n")
    print(f"revision {revision}: {len(text)} bytes, {len(calls())} calls")
