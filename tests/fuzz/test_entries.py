"""Any argument of a public function: a typed error that says what was expected, or exactly the
requested effect. Nothing else, and no unknown key on the server.
"""

# ruff: noqa: E501, PT017, RUF001 - tables of odd things; an error is one of two ways to be right

import datetime as dt
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queasy import (
    Client,
    Dispatch,
    Failure,
    HandlerOptions,
    InvalidInput,
    InvalidOption,
    JobOptions,
    QueasyError,
    Retry,
    SyncClient,
)
from queasy.store.keys import NAMES as KEYS
from queasy.store.net.url import parse_url
from tests.conftest import audit_all
from tests.fuzz.strategies import IDS, JSON, NAMES, NUMBERS, ODD, TIMES
from tests.servers import Server

NOWHERE = "redis://127.0.0.1:1"
OPTION_FIELDS = (
    "max_retries",
    "max_stalls",
    "max_timeouts",
    "min_backoff",
    "max_backoff",
    "timeout",
)
COUNTS = st.integers(0, 2**31)
DURATIONS = st.floats(0, 3e9) | st.timedeltas(dt.timedelta(0), dt.timedelta(days=36_000))
GOOD_OPTIONS = st.builds(
    JobOptions,
    max_retries=st.none() | COUNTS, max_stalls=st.none() | COUNTS, max_timeouts=st.none() | COUNTS,
    min_backoff=st.none() | DURATIONS, max_backoff=st.none() | DURATIONS,
    timeout=st.none() | DURATIONS,
)  # fmt: skip
ARGUMENTS = {
    "id": IDS | ODD, "run_at": TIMES | NUMBERS | ODD, "delay": TIMES | NUMBERS | ODD,
    "options": GOOD_OPTIONS | ODD, "update_data": st.booleans() | ODD,
    "update_run_at": st.sampled_from([True, False, "if_later", "if_earlier"]) | ODD,
    "update_options": st.booleans() | st.sets(st.sampled_from(OPTION_FIELDS)) | ODD,
    "reset_counts": st.booleans() | ODD, "durability": st.just("ack") | ODD,
}  # fmt: skip


def refused(error: Exception) -> None:
    """Checks that the error is typed, and says what was expected."""
    assert isinstance(error, InvalidInput), repr(error)
    text = str(error)
    assert "expected" in text or "cannot be encoded" in text or "limit" in text, text


def attempt(call: Any) -> Any:
    """The result of the call; None if it was refused with a proper error."""
    try:
        return call()
    except Exception as error:
        refused(error)
        return None


def close(seen: float | None, asked: float | None) -> bool:
    return seen == asked or (
        seen is not None and asked is not None and math.isclose(seen, asked, abs_tol=0.001)
    )


@given(st.fixed_dictionaries({}, optional=ARGUMENTS), JSON | ODD)
def test_dispatch_is_refused_or_read_back_unchanged(
    fuzzed: SyncClient, raw: Any, arguments: dict[str, Any], data: Any
) -> None:
    raw.flushall()
    queue = fuzzed.queue("q")
    sent = attempt(lambda: queue.dispatch(data, **arguments))
    keys = {key.decode() for key in raw.keys("*")}
    if sent is None:
        assert keys == set()
        return
    assert keys <= {f"fuzz:{{q}}:{name}" for name in KEYS}
    assert arguments.get("id") in (None, sent.id)
    job = queue.get(sent.id)
    assert job is not None
    assert job.readable, job.error
    options = arguments.get("options")
    for name in OPTION_FIELDS:
        asked = getattr(options, name) if isinstance(options, JobOptions) else None
        assert close(getattr(job.options, name), asked), name
    if (run_at := arguments.get("run_at")) is not None:
        at = run_at.timestamp() if isinstance(run_at, dt.datetime) else float(run_at)
        if at * 1000 > raw.time()[0] * 1000 + 1000:
            assert abs(job.run_at_epoch - at) <= 0.001
            assert job.state == "scheduled"
    raw.zadd(queue.keys.base + "waiting", {sent.id.encode("utf-8", "surrogateescape"): 1})
    lease = queue.lease(timeout=0)
    assert lease is not None
    assert (lease.job.id, lease.job.payload) == (sent.id, job.payload)
    assert lease.job.options == job.options
    assert lease.complete()
    assert queue.audit() == []


@given(JSON)
def test_json_data_is_read_back_unchanged(fuzzed: SyncClient, data: Any) -> None:
    queue = fuzzed.queue("json")
    queue.dispatch(data, id="x")
    lease = queue.lease(timeout=0)
    assert lease is not None
    assert lease.data == data
    lease.complete()


@given(st.binary(max_size=300))
def test_raw_bytes_are_read_back_unchanged(fuzzed: SyncClient, data: bytes) -> None:
    queue = fuzzed.queue("raw", codec="raw")
    for given_as in (data, bytearray(data), memoryview(data)):
        queue.dispatch(given_as, id="x")
        lease = queue.lease(timeout=0)
        assert lease is not None
        assert lease.data == data
        lease.complete()


class OddCodec:
    """Encodes and decodes to fixed values."""

    def __init__(self, encoded: Any, decoded: Any) -> None:
        self.encoded, self.decoded = encoded, decoded

    def encode(self, data: Any, /) -> Any:
        if isinstance(self.encoded, Exception):
            raise self.encoded
        return self.encoded

    def decode(self, payload: bytes, /) -> Any:
        if isinstance(self.decoded, Exception):
            raise self.decoded
        return self.decoded


@given(ODD | st.just(KeyError("x")), ODD | st.just(ValueError("x")))
def test_misbehaving_codec_raises_or_breaks_the_job(
    fuzzed: SyncClient, raw: Any, encoded: Any, decoded: Any
) -> None:
    raw.flushall()
    queue = fuzzed.queue("odd", codec=OddCodec(encoded, decoded))
    if attempt(lambda: queue.dispatch(1, id="x")) is None:
        assert not isinstance(encoded, bytes)
        return
    lease = queue.lease(timeout=0)
    if lease is None:
        assert isinstance(decoded, Exception)
        assert [job.id for job in queue.jobs("broken")] == ["x"]
    else:
        assert lease.data is decoded
        lease.complete()


@given(NAMES | ODD, NAMES | ODD)
def test_name_is_refused_or_has_its_own_keys(
    own_server: Server, raw: Any, name: Any, prefix: Any
) -> None:
    raw.flushall()
    client = attempt(lambda: SyncClient(own_server.url, prefix=prefix))
    if client is None:
        return
    with client:
        queue = attempt(lambda: client.queue(name))
        if queue is None:
            return
        queue.dispatch(1, id="x")
        for key in raw.keys("*"):
            assert key.decode().startswith(f"{prefix}:{{{name}}}:")
        assert queue.get("x") is not None
        assert queue.name == name
        audit_all_of(own_server, prefix)


def audit_all_of(server: Server, prefix: str) -> None:
    if not set(prefix) & set("*?[]\\^"):  # KEYS would take these for a pattern
        audit_all(server, prefix)


@given(st.data())
def test_every_other_call_is_refused_or_answered(
    fuzzed: SyncClient, raw: Any, data: st.DataObject
) -> None:
    queue = fuzzed.queue("q")
    any_id, odd = data.draw(IDS | ODD), data.draw(ODD)
    kind = data.draw(st.sampled_from(["failed", "broken"]) | ODD)
    ids = data.draw(st.lists(IDS | ODD, max_size=3) | IDS | ODD)
    calls: list[Any] = [
        lambda: queue.cancel(any_id, running=odd),
        lambda: queue.cancel(any_id),
        lambda: queue.get(any_id),
        lambda: list(queue.jobs(odd)),
        lambda: queue.requeue(ids, kind=kind),
        lambda: queue.drop(ids, kind=kind),
        lambda: queue.trim(odd, kind=kind),
        lambda: queue.destroy(force=odd),
        lambda: queue.evict(odd),
        lambda: queue.evict("c1", died=odd),
        lambda: queue.configure(limits=odd),
        lambda: queue.configure(fail_handler=odd),
        lambda: queue.configure(failed_limit=odd, broken_limit=odd),
        lambda: queue.lease(odd, timeout=0),
        lambda: queue.dispatch_many(ids if isinstance(ids, list) else odd, durability="ack"),
        lambda: queue.dispatch_many([Dispatch(1, **{data.draw(st.sampled_from(list(ARGUMENTS)[:-1])): odd})]),
        lambda: fuzzed.workers(odd),
        lambda: fuzzed.workers([any_id]),
        lambda: fuzzed.queue("q", codec=odd),
    ]  # fmt: skip
    attempt(data.draw(st.sampled_from(calls)))
    for key in raw.keys("*"):
        assert key.decode("utf-8", "surrogateescape").startswith("fuzz:{q}"), key
    raw.flushall()


@given(st.data())
def test_every_call_of_a_lease_is_refused_or_answered(
    fuzzed: SyncClient, raw: Any, data: st.DataObject
) -> None:
    raw.flushall()
    queue = fuzzed.queue("q")
    queue.dispatch(1, id="x", options=JobOptions(max_retries=1))
    lease = queue.lease(timeout=0)
    assert lease is not None
    odd, more = data.draw(TIMES | NUMBERS | ODD), data.draw(st.none() | ODD)
    calls: list[Any] = [
        lambda: lease.retry(at=odd),
        lambda: lease.retry(after=odd, error=more),
        lambda: lease.retry(at=odd, after=more),
        lambda: lease.fail(odd),
        lambda: lease.extend(odd),
    ]
    attempt(data.draw(st.sampled_from(calls)))
    job = queue.get("x")
    assert job is not None
    assert job.readable, job.error
    assert queue.audit() == []


@given(st.dictionaries(st.sampled_from(OPTION_FIELDS), ODD | NUMBERS | TIMES, max_size=3))
def test_job_options_are_refused_or_as_given(given_options: dict[str, Any]) -> None:
    options = attempt(lambda: JobOptions(**given_options))
    if options is not None:
        for name, value in given_options.items():
            asked = value.total_seconds() if isinstance(value, dt.timedelta) else value
            assert getattr(options, name) == asked


@given(
    st.dictionaries(
        st.sampled_from([*OPTION_FIELDS, "size", "priority", "on_exception"]), ODD, max_size=3
    )
)
def test_handler_options_are_refused_or_as_given(options: dict[str, Any]) -> None:
    attempt(lambda: HandlerOptions(**options))
    attempt(lambda: HandlerOptions.of(options, fail=True))
    queue = Client(NOWHERE).queue("q")
    attempt(lambda: queue.handler(lambda data: None, **options))
    attempt(lambda: queue.fail_handler(**options)(lambda data: None))


@given(ODD | st.text(max_size=30))
def test_a_handler_is_refused_or_registered(handler: Any) -> None:
    queue = Client(NOWHERE).queue("q")
    if handler is not None:
        attempt(lambda: queue.handler(handler))
        attempt(lambda: queue.fail_handler(handler))


@given(ODD.filter(lambda odd: odd is not None))
def test_a_connection_that_is_no_client_is_refused(odd: Any) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(InvalidOption, match="connection: expected a client of redis-py"):
            kind(connection=odd)


@given(ODD, TIMES | NUMBERS | ODD, TIMES | NUMBERS | ODD)
def test_retry_and_failure_are_refused_or_made(message: Any, at: Any, after: Any) -> None:
    attempt(lambda: Retry(message, at=at))
    attempt(lambda: Retry(message, after=after))
    attempt(lambda: Retry(message, at=at, after=after))
    Failure(message)


WORK = st.fixed_dictionaries({}, optional={
    "processes": ODD, "capacity": ODD, "grace": ODD | TIMES, "max_jobs": ODD, "max_memory": ODD,
    "lease": ODD | TIMES,
    "queues": ODD | st.lists(st.just("q") | ODD, max_size=2), "signals": ODD,
})  # fmt: skip


@given(WORK)
def test_the_arguments_of_a_worker_are_refused_or_taken(options: dict[str, Any]) -> None:
    client = Client(NOWHERE)
    client.queue("q").handler(lambda data: None)
    attempt(lambda: client.worker(options.pop("queues", None), **options))


@given(ODD | st.text(max_size=30), ODD, ODD, ODD, ODD)
def test_the_arguments_of_a_client_are_refused_or_taken(
    url: Any, prefix: Any, timeout: Any, max_payload: Any, folder: Any
) -> None:
    for arguments in (
        {"url": url or "x"}, {"prefix": prefix}, {"timeout": timeout}, {"max_payload": max_payload},
        {"url": None, "folder": folder if folder is not None else 5},
    ):  # fmt: skip
        attempt(lambda: SyncClient(**({"url": NOWHERE} | arguments)))  # noqa: B023


PARTS = st.sampled_from([
    "redis", "rediss", "unix", "valkey", "redis+sentinel", "redis+cluster", "http", "", "://", ":", "/",
    "//", "@", "?", "#", "&", "=", "%", "%00", "%zz", "[", "]", "[::1]", "hunter2", "host", ",", "6379",
    "99999", "-1", "db", "db=1", "password=hunter2", "ssl_cert_reqs=x", "\0", "é", "a" * 70, "..", " ",
    "username", "１",
])  # fmt: skip


@given(st.lists(PARTS, max_size=9).map("".join) | st.text(max_size=40))
def test_url_is_refused_or_parsed_without_showing_secrets(url: str) -> None:
    try:
        target = parse_url(url)
    except QueasyError as error:
        refused(error)
        assert "hunter2" not in str(error)
        return
    assert target.addresses
    if "@" not in url:
        return
    secrets = [str(value) for value in target.connect.values()]
    shown = str(target) + repr(target)
    assert not [
        one
        for one in secrets
        if len(one) > 6 and one == "hunter2" and one in shown.replace(target.addresses[0].host, "")
    ]


CONNECTED = st.sampled_from(["redis://", "unix://", "redis+sentinel://", "redis+cluster://"])
HOSTS = st.sampled_from([
    "a..b:1", "a" * 70 + ":1", "\0:1", "a%00b/x", "é:1", "[::1]:1", ".:1", "/%00", "/" + "x" * 300, "-:1", "127.0.0.1:1",
    "127.0.0.1:1/-1", "127.0.0.1:1/999999", "127.0.0.1:1/s/-1", "/tmp", "/dev/null",
])  # fmt: skip


@given(CONNECTED, HOSTS)
def test_url_of_no_server_raises_a_typed_error(scheme: str, rest: str) -> None:
    with pytest.raises(QueasyError):
        SyncClient(scheme + rest, timeout=0.2).connect()
