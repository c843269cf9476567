"""A program in another language needs the protocol page and `queasy library`, and nothing else."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from queasy import SyncClient
from tests.docs.pages import DOCS, section
from tests.servers import Server, ServerKind, start_server

PAGE = DOCS / "reference" / "protocol.md"
CALLS = re.findall(r"^FCALL .*$", section(PAGE, "A pull consumer in any language"), re.M)
KEYS = re.findall(r"^\| \d+ \| `(\w+)` \|", section(PAGE, "Keys"), re.M)


@pytest.fixture
def empty(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind) as server:
        yield server


def printed_library() -> str:
    command = [sys.executable, "-m", "queasy", "library"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def words(call: str, token: str = "") -> list[str]:
    """A call of the page as the words to send: with all keys, and the token of the lease."""
    verb, function, count, first, _, *arguments = shlex.split(
        call.replace("<the token in the reply of dequeue>", token)
    )
    base = first.removesuffix("waiting")
    of_fail_queue = base.removesuffix(":") + "-fail:"
    keys = [base + name for name in KEYS] + [of_fail_queue + name for name in KEYS]
    return [verb, function, count, *keys[: int(count)], *arguments]


def test_plain_redis_client_dispatches_leases_and_completes_as_the_page_says(
    empty: Server,
) -> None:
    dispatch, dequeue, settle = CALLS
    with empty.client() as plain:
        with pytest.raises(redis.ResponseError, match="Function not found"):
            plain.execute_command(*words(dispatch))
        plain.function_load(printed_library())
        assert plain.execute_command(*words(dispatch)) == ["created"]
        state, _, _, job, *_ = plain.execute_command(*words(dequeue))
        assert (state, job[0], job[3]) == ("ok", "job-1", "payload")
        assert plain.execute_command(*words(settle, token=job[1])) == ["finished"]
        assert plain.execute_command(*words(settle, token=job[1])) == ["lost"]


def test_plain_redis_client_shares_a_queue_with_this_one(empty: Server) -> None:
    """The job of each is taken by the other; neither changes the payload."""
    dispatch, dequeue, settle = CALLS
    with empty.client() as plain, SyncClient(empty.url) as client:
        queue = client.queue("q", codec="raw")
        with pytest.raises(redis.ResponseError, match="already exists"):
            plain.function_load(printed_library())  # the client has loaded it
        assert plain.execute_command(*words(dispatch)) == ["created"]
        lease: Any = queue.lease(timeout=0)
        assert (lease.job.id, lease.data) == ("job-1", b"payload")
        assert lease.complete()
        queue.dispatch(b"ours", id="job-1")
        _, _, _, job, *_ = plain.execute_command(*words(dequeue))
        assert (job[0], job[3]) == ("job-1", "ours")
        assert plain.execute_command(*words(settle, token=job[1])) == ["finished"]
        assert queue.counts().active == 0
        assert queue.audit() == []
