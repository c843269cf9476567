"""Bad input is refused with a typed error before anything is written."""

import math
from datetime import datetime
from typing import Any

import pytest

from queasy import (
    Client,
    Dispatch,
    InvalidId,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidQueue,
    InvalidTime,
    InvalidUrl,
    JobError,
    JobOptions,
    QueasyError,
    SyncClient,
)

NAN, INF = math.nan, math.inf

BAD_DISPATCHES: list[tuple[dict[str, Any], type[QueasyError], str]] = [
    ({"id": ""}, InvalidId, "1 to 512 bytes"),
    ({"id": "x" * 513}, InvalidId, "got 513"),
    ({"id": "é" * 257}, InvalidId, "got 514"),
    ({"id": 42}, InvalidId, "expected a str"),
    ({"id": b"bytes"}, InvalidId, "expected a str"),
    ({"id": "\ud800"}, InvalidId, "UTF-8"),
    ({"run_at": NAN}, InvalidTime, "run_at"),
    ({"run_at": INF}, InvalidTime, "run_at"),
    ({"run_at": -1.0}, InvalidTime, "run_at"),
    ({"run_at": 1e30}, InvalidTime, "run_at"),
    ({"run_at": 1_790_000_000_000}, InvalidTime, "milliseconds"),
    ({"run_at": 60}, InvalidTime, "use a delay"),
    ({"run_at": "tomorrow"}, InvalidTime, "run_at"),
    ({"run_at": True}, InvalidTime, "run_at"),
    ({"run_at": datetime(2030, 1, 1)}, InvalidTime, "time zone"),
    ({"delay": -1}, InvalidTime, "delay"),
    ({"delay": NAN}, InvalidTime, "delay"),
    ({"delay": INF}, InvalidTime, "delay"),
    ({"delay": "5"}, InvalidTime, "delay"),
    ({"delay": 1, "run_at": 1.0}, InvalidTime, "both"),
    ({"update_data": "yes"}, InvalidOption, "update_data"),
    ({"update_data": None}, InvalidOption, "update_data"),
    ({"update_run_at": "sometimes"}, InvalidOption, "if_later"),
    ({"update_run_at": None}, InvalidOption, "if_later"),
    ({"update_run_at": 1}, InvalidOption, "if_later"),
    ({"update_run_at": []}, InvalidOption, "if_later"),
    ({"update_options": {"colour"}}, InvalidOption, "colour"),
    ({"update_options": "max_retries"}, InvalidOption, "names of options"),
    ({"update_options": 3}, InvalidOption, "update_options"),
    ({"reset_counts": 0}, InvalidOption, "reset_counts"),
    ({"options": {"max_retries": 3}}, InvalidOption, "JobOptions"),
]


@pytest.mark.parametrize(("arguments", "error", "says"), BAD_DISPATCHES)
async def test_a_bad_dispatch_is_refused_and_nothing_is_written(
    client: Client, arguments: dict[str, Any], error: type[QueasyError], says: str
) -> None:
    queue = client.queue("q")
    with pytest.raises(error, match=says):
        await queue.dispatch(1, **arguments)
    with pytest.raises(error, match=says):
        await queue.dispatch_many([Dispatch(1, **arguments)])
    counts = await queue.counts()
    assert (counts.waiting, counts.broken) == (0, 0)


async def test_an_unknown_durability_is_refused(client: Client) -> None:
    with pytest.raises(InvalidOption, match="fsynced"):
        await client.queue("q").dispatch(1, durability="sure")  # type: ignore[arg-type]


class Unencodable:
    pass


BAD_DATA = [
    Unencodable(),
    b"bytes",
    {"a": {1, Unencodable()}},
    "\ud800",
    NAN,
    [INF],
    {"deep": [{"x": NAN}]},
]


@pytest.mark.parametrize("data", BAD_DATA)
async def test_data_that_cannot_be_encoded_is_refused(client: Client, data: object) -> None:
    queue = client.queue("q")
    with pytest.raises(InvalidPayload, match="cannot be encoded"):
        await queue.dispatch(data)
    assert (await queue.counts()).waiting == 0


async def test_data_that_is_nothing_but_odd_is_kept(client: Client) -> None:
    queue = client.queue("q")
    for data in (None, {}, [], "", 0, False, "null", {"a": None}, [None, 1.5], 2**63):
        await queue.dispatch(data)
        async with queue.lease() as lease:
            assert lease is not None
            assert lease.data == data


async def test_a_payload_over_the_limit_is_refused(server: Any, prefix: str) -> None:
    async with Client(server.url, prefix=prefix, max_payload=1000) as client:
        queue = client.queue("q", codec="raw")
        await queue.dispatch(b"x" * 1000)
        with pytest.raises(InvalidPayload, match="1001 bytes, the limit is 1000"):
            await queue.dispatch(b"x" * 1001)
        with pytest.raises(InvalidPayload, match="expected bytes"):
            await queue.dispatch("text")
        assert (await queue.counts()).waiting == 1


async def test_the_default_limit_is_a_mebibyte(client: Client) -> None:
    queue = client.queue("q", codec="raw")
    await queue.dispatch(b"x" * 1024 * 1024)
    with pytest.raises(InvalidPayload):
        await queue.dispatch(b"x" * (1024 * 1024 + 1))


BAD_NAMES = [
    "",
    "a{b",
    "a}b",
    "a b",
    "a\tb",
    "a\nb",
    "a\0b",
    "a\x7fb",
    "x" * 201,
    5,
    None,
    "\ud800",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidQueue, match="queue name"):
        Client("redis://127.0.0.1:1").queue(name)
    with pytest.raises(InvalidQueue, match="prefix"):
        Client("redis://127.0.0.1:1", prefix=name)


BAD_OPTIONS: list[dict[str, Any]] = [
    {"max_retries": -1},
    {"max_retries": 1.5},
    {"max_retries": True},
    {"max_stalls": "3"},
    {"max_timeouts": 2**40},
    {"min_backoff": -0.1},
    {"max_backoff": NAN},
    {"timeout": INF},
    {"timeout": "1s"},
]


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_bad_options_are_refused_by_name(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidInput, match=name):
        JobOptions(**arguments)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        JobOptions(colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": 0}, {"timeout": -1}, {"timeout": NAN}, {"max_payload": 0}, {"max_payload": "1"}],
)
def test_bad_client_arguments_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidInput, match=name):
        Client("redis://127.0.0.1:1", **arguments)


@pytest.mark.parametrize("codec", ["yaml", object(), 5])
def test_a_bad_codec_is_refused(codec: Any) -> None:
    with pytest.raises(InvalidOption, match="codec"):
        Client("redis://127.0.0.1:1").queue("q", codec=codec)


BAD_URLS = [
    "http://host", "host:6379", "redis://h:99999", "redis://h:port", "redis://h/x", "unix://",
    "redis+sentinel://h:26379", "redis+cluster://h:1/3", "redis+magic://h", "redis://a,b",
    "redis://h?colour=red", "redis://h?db=x", "unix://tmp/socket", "unix://me:se/hunter2@/socket",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused_and_its_secrets_kept(url: str) -> None:
    with_secret = url.replace("://", "://user:hunter2@", 1)
    for one in (url, with_secret):
        with pytest.raises(InvalidUrl, match="url") as caught:
            Client(one)
        assert "hunter2" not in str(caught.value)


WRONG_PARTS = [
    ("redis://h?ssl_ca_certs=ca.pem", r"ssl_ca_certs: expected rediss:// \(TLS\), got redis://"),
    ("unix:///s?ssl_keyfile=x", r"ssl_keyfile: expected rediss:// \(TLS\), got unix://"),
    ("valkey+cluster://h?ssl_certfile=x", r"expected valkeys\+cluster:// \(TLS\)"),
    ("redis://h?sentinel_password=x", r"sentinel_password: expected redis\+sentinel://"),
    ("redis://h:99999", "port: expected"),
    ("redis://h:port", "port: expected"),
    ("redis://h/x", "database: expected"),
    ("redis+sentinel://h/service/x", "database: expected"),
    ("redis://h?db=x", "database: expected"),
    ("redis://a..b", "host: expected"),
    ("unix://tmp/socket", "three slashes"),
    ("redis://h?socket_timeout=3", "option 'socket_timeout' is unknown"),
    ("redis://h?db=1&ssl_ca_cert=x", r"option number 2 .*did you mean ssl_ca_certs\?"),
]


@pytest.mark.parametrize(("url", "says"), WRONG_PARTS)
def test_the_part_of_a_url_that_is_wrong_is_named(url: str, says: str) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(InvalidUrl, match=says):
            kind(url)


def test_a_url_and_a_folder_are_one_too_many() -> None:
    with pytest.raises(InvalidOption, match="got both"):
        Client("redis://127.0.0.1:1", folder="somewhere")


async def test_bad_arguments_of_other_calls_are_refused(client: Client) -> None:
    queue = client.queue("q")
    bad: list[tuple[Any, type[QueasyError]]] = [
        (lambda: queue.cancel(""), InvalidId),
        (lambda: queue.get(5), InvalidId),  # type: ignore[arg-type]
        (lambda: queue.requeue([""]), InvalidId),
        (lambda: queue.requeue("a", kind="lost"), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.drop("a", kind="waiting"), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.trim(-1), InvalidOption),
        (lambda: queue.configure(failed_limit=-1), InvalidOption),
        (lambda: anext(queue.jobs("asleep")), InvalidOption),  # type: ignore[arg-type]
        (lambda: queue.evict("no such:client"), InvalidInput),
    ]
    for call, error in bad:
        with pytest.raises(error):
            await call()
    for seconds in (0, -1, NAN, INF, "5"):
        with pytest.raises(InvalidInput):
            queue.lease(seconds)  # type: ignore[arg-type]
    with pytest.raises(InvalidTime, match="timeout"):
        queue.lease(timeout=-1)
    await queue.dispatch(1)
    async with queue.lease() as lease:
        assert lease is not None
        with pytest.raises(InvalidTime, match="both"):
            await lease.retry(at=1.0, after=1)
        with pytest.raises(InvalidTime):
            await lease.extend(-5)


async def test_one_bad_job_in_a_list_keeps_all_of_it_out(client: Client) -> None:
    queue = client.queue("q")
    with pytest.raises(InvalidId):
        await queue.dispatch_many([*range(2500), Dispatch(1, id="")])
    assert (await queue.counts()).waiting == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (object(), "type object"),
        (b"raw", "no bytes"),
        (float("nan"), "NaN"),
        ({"deep": [None, float("inf")]}, "NaN"),
        ("x" * 2_000_000, "2000002 bytes"),
        (Dispatch(1, id="a", delay=-1), "delay"),
    ],
)
async def test_a_bad_job_among_many_is_named(client: Client, bad: Any, reason: str) -> None:
    queue = client.queue("q")
    for jobs in ([*range(1234), bad, 1], (one for one in (*range(1234), bad, 1))):
        with pytest.raises(InvalidInput, match=rf"^jobs\[1234\]: .*{reason}"):
            await queue.dispatch_many(jobs)
    assert (await queue.counts()).waiting == 1234, "of the generator; of the list, nothing"


@pytest.mark.parametrize("jobs", ["text", b"bytes", {"to": "x"}, 5, None])
async def test_one_job_in_place_of_many_is_refused(client: Client, jobs: Any) -> None:
    with pytest.raises(InvalidInput, match="dispatch_many"):
        await client.queue("q").dispatch_many(jobs)


async def test_a_generator_that_raises_leaves_what_it_gave(client: Client) -> None:
    def jobs() -> Any:
        yield from range(1500)
        raise RuntimeError("the database went away")

    queue = client.queue("q")
    with pytest.raises(RuntimeError, match="database"):
        await queue.dispatch_many(jobs())
    assert (await queue.counts()).waiting == 1500


PASSWORDS = ["abc/hunter2", "hunter2#x", "hunter2?x=1", "x?hunter2=1", "hun@ter2/x"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_that_was_not_escaped_is_not_shown(password: str) -> None:
    for url in (f"redis://:{password}@h:6379/0", f"redis+sentinel://u:{password}@h:1/s"):
        try:
            client = Client(url)
        except InvalidUrl as error:
            shown = str(error)
        else:
            shown = repr(client)
        assert "hunter2" not in shown
        assert "ter2" not in shown.replace("sentinel", "")


HUGE = 10**400


async def test_things_of_the_wrong_kind_get_a_typed_error(client: Client) -> None:
    queue = client.queue("q")
    calls: list[Any] = [
        lambda: queue.configure(limits={}),  # type: ignore[arg-type]
        lambda: queue.requeue(5),  # type: ignore[arg-type]
        lambda: queue.requeue(None),  # type: ignore[arg-type]
        lambda: queue.drop([queue]),  # type: ignore[list-item]
        lambda: queue.evict(None),  # type: ignore[arg-type]
        lambda: queue.evict("\ud800"),
        lambda: queue.dispatch(1, delay=HUGE),
        lambda: queue.dispatch(1, run_at=HUGE),
        lambda: queue.cancel("\ud800"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            await call()
    for seconds in (HUGE, None):
        with pytest.raises(InvalidInput):
            queue.lease(seconds)  # type: ignore[arg-type]
    for folder in (5, "", "a\0b"):
        with pytest.raises(InvalidOption, match="folder"):
            Client(folder=folder)  # type: ignore[arg-type]


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_error_that_cannot_be_shown_still_retries_the_job(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1, id="a", options=JobOptions(min_backoff=60))
    with pytest.raises(Unshowable):
        async with queue.lease():
            raise Unshowable
    job = await queue.get("a")
    assert job is not None
    assert job.readable
    assert job.retry_count == 1
    odd = JobError(message=5, type="\ud800", kind="odd")  # type: ignore[arg-type]
    await queue.dispatch(1, id="a", reset_counts=False)
    lease = await queue.lease()
    assert await lease.retry(error=odd)
    job = await queue.get("a")
    assert job is not None
    assert job.error is not None
    assert (job.error.message, job.error.kind) == ("5", "retriable")


async def test_a_fail_id_longer_than_an_id_may_be_is_still_an_id(client: Client) -> None:
    queue = client.queue("q")
    await queue.configure(fail_handler=True)
    await queue.dispatch(1, id="x" * 512)
    await (await queue.lease()).fail()
    (failure,) = [job async for job in queue.fail_queue.jobs()]
    assert len(failure.id) > 512
    assert await queue.fail_queue.get(failure.id)
    assert await queue.fail_queue.cancel(failure.id)
