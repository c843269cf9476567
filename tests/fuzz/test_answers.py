"""Any bytes from the server: a typed error, or a record marked unreadable."""

# ruff: noqa: E501 - tables of odd things; an error is one of two ways to be right

import asyncio
import contextlib
import resource
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy import Client, ProtocolError
from queasy.errors import QueasyError
from queasy.job import Job
from queasy.store.command import Command
from queasy.store.commands import QueueCommands, version
from queasy.store.job_reader import JobReader
from queasy.store.keys import QueueKeys
from queasy.store.net.topology import Exchange, route_to
from queasy.store.net.url import parse_url
from queasy.store.records import DispatchItem
from queasy.store.retrying import call
from queasy.worker.control import Control, Order
from queasy.worker.supervision.messages import decode_instruction, decode_report
from queasy.worker_record import WorkerRecord
from tests.fuzz.strategies import REPLIES

COMMANDS = QueueCommands(QueueKeys("p", "q"))
READS: list[Command[Any]] = [
    COMMANDS.dispatch([DispatchItem("a", b"x")]), COMMANDS.cancel(["a"]), COMMANDS.settle([]),
    COMMANDS.dequeue("c", lease=1, limit=1), COMMANDS.extend("a", 1, 1), COMMANDS.register("c", 1),
    COMMANDS.bump(["c"], 1), COMMANDS.evict("c"), COMMANDS.sweep(), COMMANDS.clients(),
    COMMANDS.configure(), COMMANDS.requeue("failed", ["a"]), COMMANDS.drop("failed", ["a"]),
    COMMANDS.trim("failed", 1), COMMANDS.destroy(force=False), COMMANDS.counts(), COMMANDS.get("a"),
    COMMANDS.jobs("waiting", b"", 10), COMMANDS.leases("c", b"", 10), COMMANDS.stats(), COMMANDS.audit(0, 10), version(),
]  # fmt: skip


def answer(command: Command[Any], reply: Any) -> Any:
    """The result of a command if the server replies `reply`."""
    steps = call(command, route_to(parse_url("redis://127.0.0.1:1")), patience=0)
    step = next(steps)
    assert isinstance(step, Exchange)
    try:
        steps.send([reply])
    except StopIteration as done:
        return done.value
    raise AssertionError("the command sends more than one call")


@given(st.sampled_from(READS), REPLIES)
def test_unexpected_reply_raises_protocol_error(command: Command[Any], reply: Any) -> None:
    with contextlib.suppress(ProtocolError):
        answer(command, reply)


def show(job: Job) -> None:
    repr((job, job.run_at, job.dispatched_at, job.ended_at, job.leased_at, job.error, job.origin))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from([
    "dispatched_at", "retry_count", "stall_count", "timeout_count", "options", "error", "companions",
    "origin", "cancelled", "at", "id", "token", "failed_at",
])  # fmt: skip
RECORDS = st.one_of(
    st.binary(max_size=40),
    st.dictionaries(FIELDS, VALUES | st.dictionaries(FIELDS, VALUES), max_size=4).map(msgspec.msgpack.encode),
    st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
                     b"\x81\xa7options\xdf\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81\xa1a" * 50_000]),
)  # fmt: skip
TEXTS = st.binary(max_size=12) | st.sampled_from(
    [b"", b"1", b"nan", b"-inf", b"1e999", b"9" * 5000]
)


@given(TEXTS, TEXTS, TEXTS, TEXTS, RECORDS, TEXTS, RECORDS)
def test_garbage_row_becomes_an_unreadable_job(
    id_: bytes, run_at: bytes, token: bytes, client: bytes, info: bytes, payload: bytes, note: bytes
) -> None:
    reader = JobReader("q", "q", None)
    show(reader.row([id_, b"due", run_at, token, client, info, payload, note]))
    good = [b"good", b"1", b"1", b"x", b""]
    jobs = reader.taken([id_, token, run_at, payload, info, *good], "c")
    for job in jobs:
        show(job)
    assert jobs[1].readable
    assert jobs[1].id == "good"


def test_a_record_that_claims_to_be_huge_takes_no_memory() -> None:
    reader = JobReader("q", "q", None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        for record in (claim, b"\x81\xa7options" + claim, b"\x81\xa5error" + claim):
            assert not reader.taken([b"a", b"1", b"1", b"x", record], "c")[0].readable
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"


LINES = st.binary(max_size=60) | REPLIES.map(repr).map(lambda text: text.encode("utf-8", "replace")) | st.sampled_from([
    b"[" * 100_000, b'{"do":"serve","queue":"\\ud800"}', b'{"do":5}', b'{"do":"serve"}', b"null", b"1" * 5000,
    b'{"type":"stop","grace":1e999}', b'{"type":"nothing"}', b'{"pid":1e30}', b'{"queues":{"a":-1}}',
])  # fmt: skip


@given(LINES)
def test_invalid_worker_record_reads_as_none(line: bytes) -> None:
    record = WorkerRecord.read(line)
    assert record is None or isinstance(record, WorkerRecord)


@given(LINES)
def test_message_between_supervisor_and_worker_is_read_or_refused(line: bytes) -> None:
    for read in (decode_instruction, decode_report):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            read(line)


@given(LINES | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_invalid_order_is_logged_and_ignored(line: bytes) -> None:
    asyncio.run(order(line))


async def order(message: bytes) -> None:
    """Delivers a message on a channel of a worker, as a listener does."""

    async def carry_out(order: Order) -> None: ...

    async def subscribe(channel: str) -> object:
        return channel

    async def connect() -> None: ...

    heard: dict[str, Any] = {}
    listener = SimpleNamespace(
        add_callback=heard.__setitem__, remove_callback=heard.pop, subscribe=subscribe
    )
    store: Any = SimpleNamespace(listener=listener, connect=connect)
    control = Control(store, carry_out)
    control.listen({"channel"})
    heard["channel"](message)
    await control.close()


@pytest.mark.parametrize("queues", [5, "q", [5], ["a{b"]])
async def test_workers_of_an_invalid_queue_name_are_refused(queues: Any) -> None:
    client = Client("redis://127.0.0.1:1")
    with pytest.raises(QueasyError, match="expected"):
        await client.workers(queues)
    with pytest.raises(QueasyError, match="expected"):
        await client.tell_workers("explode", "q")  # type: ignore[arg-type]
