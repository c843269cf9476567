"""Clients of one revision and the library of another.

`tests/revisions/` has the assembled library of each revision, and recorded calls of its clients. A
later library understands every call of revision 9 or later, and a later client works with those
libraries. Revision 8 was never published, and its calls have another form: a client of 8 and a
library of 9 refuse each other, with an error that says which side to update, and nothing is lost.
"""

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from queasy import ProtocolError, SyncClient
from queasy.store import library
from queasy.store.keys import QueueKeys
from tests.access import PASSWORD, documented_rules
from tests.faults.traffic import kind
from tests.revisions.__main__ import TOKEN
from tests.servers import Server, ServerKind, start_server
from tests.store.harness import read_all

__all__ = ["kind"]  # a fixture

FOLDER = Path(__file__).parents[2] / "revisions"
REVISIONS = sorted(int(file.name.partition(".")[0]) for file in FOLDER.glob("*.lua.xz"))
COMPATIBLE = [revision for revision in REVISIONS if revision >= library.LEAST]
BEFORE = library.LEAST - 1
QUEUE, FAIL_QUEUE = QueueKeys("old", "q"), QueueKeys("old", "q", fail=True)


@pytest.fixture
def own_server(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as server:
        yield server


@pytest.fixture
def connection(own_server: Server) -> Iterator[redis.Redis]:
    with own_server.client(decode_responses=False) as client:
        yield client


def library_of(revision: int) -> str:
    return lzma.decompress((FOLDER / f"{revision}.lua.xz").read_bytes()).decode()


def calls_of(revision: int) -> list[list[bytes]]:
    lines: list[list[str]] = json.loads((FOLDER / f"{revision}.calls.json").read_text())
    return [[word.encode("latin-1") for word in line] for line in lines]


def load(connection: redis.Redis, text: str) -> None:
    connection.execute_command("FUNCTION", "LOAD", "REPLACE", text)


class Client:
    """Sends recorded calls. The token of the last dequeue takes the place of the recorded one."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._token = b""

    def send(self, words: list[bytes]) -> Any:
        recorded = str(TOKEN).encode()
        reply = self._connection.execute_command(
            *(word.replace(recorded, self._token or recorded) for word in words)
        )
        if words[1].endswith(b"_dequeue") and reply[3]:
            self._token = reply[3][1]
        return reply


def covers(now: Any, then: Any) -> bool:
    """Whether a client that expects the reply `then` understands `now`: it may have more parts."""
    if isinstance(then, list):
        parts = zip(now, then, strict=False)
        return len(now) >= len(then) and all(covers(*pair) for pair in parts)
    is_word = isinstance(then, bytes) and then.isalpha()
    return now == then if is_word else type(now) is type(then)


def test_calls_of_every_function_of_the_last_revision_are_recorded() -> None:
    recorded = {words[1].decode() for words in calls_of(REVISIONS[-1])}
    functions = re.findall(r"^register\('(\w+)',", library_of(REVISIONS[-1]), re.M)
    assert recorded == {library.PREFIX + function for function in functions}


@pytest.mark.parametrize("revision", COMPATIBLE)
def test_the_library_understands_every_call_of_an_earlier_client(
    connection: redis.Redis, revision: int
) -> None:
    replies: list[list[Any]] = []
    for text in (library_of(revision), library.source()):
        connection.flushall()
        load(connection, text)
        client = Client(connection)
        replies.append([client.send(words) for words in calls_of(revision)])
    for words, then, now in zip(calls_of(revision), *replies, strict=True):
        assert covers(now, then), (words[1], then, now)


def user_that_may_not_load(server: Server) -> str:
    rules = [rule for rule in documented_rules("worker") if rule != "+function|load"]
    rules = [rule.replace("queasy:*", "*:{*") for rule in rules]
    server.call("ACL", "SETUSER", "limited", "reset", *rules)
    return server.url_as("limited", PASSWORD)


@pytest.mark.parametrize("revision", COMPATIBLE)
def test_a_client_works_with_the_library_of_an_earlier_revision(
    own_server: Server, connection: redis.Redis, revision: int
) -> None:
    load(connection, library_of(revision))
    with SyncClient(user_that_may_not_load(own_server), prefix="new") as client:
        queue = client.queue("q")
        queue.dispatch_many([1, 2, 3])
        queue.dispatch(4, id="x", delay=60)
        assert queue.cancel("x")
        for end in ("complete", "fail", "retry"):
            lease = queue.lease(timeout=0)
            assert lease is not None
            assert getattr(lease, end)()
        assert queue.requeue([job.id for job in queue.jobs("failed")]) == 1
        assert queue.audit() == []
        assert queue.counts().waiting == 2
    assert connection.execute_command("FCALL_RO", "queasy_v1_version", 0)[1] == revision


def test_an_unpublished_client_is_told_to_update_and_changes_nothing(
    connection: redis.Redis, own_server: Server
) -> None:
    with SyncClient(own_server.url, prefix="old") as client:
        client.queue("q").dispatch(1, id="mine")
    before = read_all(connection, QUEUE, FAIL_QUEUE)
    for words in calls_of(BEFORE):
        if words[1] != b"queasy_v1_version":
            with pytest.raises(redis.ResponseError, match="update its client"):
                connection.execute_command(*words)
    assert read_all(connection, QUEUE, FAIL_QUEUE) == before


def test_a_client_does_not_use_an_unpublished_library(
    connection: redis.Redis, own_server: Server
) -> None:
    load(connection, library_of(BEFORE))
    refused = pytest.raises(ProtocolError, match=f"revision {BEFORE} .* too old .* FUNCTION LOAD")
    with refused, SyncClient(user_that_may_not_load(own_server)):
        pass


def test_jobs_of_an_unpublished_library_are_there_after_the_update(
    connection: redis.Redis, own_server: Server
) -> None:
    load(connection, library_of(BEFORE))
    old = Client(connection)
    puts = [words for words in calls_of(BEFORE) if words[1] == b"queasy_v1_put"]
    assert {status for words in puts for status in old.send(words)} == {b"created"}
    with SyncClient(own_server.url, prefix="old") as client:
        queue, ran = client.queue("q", codec="raw"), list[str]()
        assert queue.audit() == []
        while (lease := queue.lease(timeout=0)) is not None:
            ran.append(lease.job.id)
            assert lease.complete()
    assert ran == ["one", "two", "three", "a", "b", "c", "d", "e"]
