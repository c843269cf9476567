"""What a fail handler learns: the job as it was, and everything its error carried."""

import asyncio
from typing import Any

import msgspec
import pytest

from queasy import Client, Job, JobError, JobOptions, Queue, redact_secrets
from queasy.outcomes import Fail
from queasy.store.records import Ending, _ErrorRecord
from tests.worker.inline import Seen, until_empty, working


async def test_fail_handler_sees_the_job_as_it_was(
    client: Client, emails: Queue, seen: Seen
) -> None:
    runs: list[Job] = []

    @emails.handler(max_retries=1, min_backoff=0, timeout="unlimited")
    async def handle(data: Any, job: Job) -> None:
        runs.append(job)
        raise ValueError("no")

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        seen.add(data, job)

    await emails.dispatch(1, id="job", delay=0.05, options=JobOptions(max_stalls="unlimited"))
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    last = runs[-1]
    assert job.options == last.options
    assert (job.options.max_stalls, job.options.timeout) == ("unlimited", "unlimited")
    assert (job.run_at, job.dispatched_at) == (last.run_at, last.dispatched_at)
    assert job.run_at is not None
    counts = (job.retry_count, job.stall_count, job.timeout_count, job.expiry_count)
    assert counts == (1, 0, 0, 0)
    assert (job.id, job.token, job.state) == ("job", last.token, "failed")


class DeclinedError(Exception):
    def __init__(self, code: int, card: str, token: str) -> None:
        super().__init__("the bank declined")
        self.code, self.card, self.token = code, card, token


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_fail_handler_sees_what_the_error_carried_and_what_caused_it(
    client: Client, emails: Queue, seen: Seen, is_async: bool
) -> None:
    errors: list[JobError] = []

    def hide_cards(name: str, value: object) -> object:
        return "****" if name == "card" else redact_secrets(name, value)

    def fail(data: str) -> None:
        try:
            raise OSError(28, "no space")
        except OSError as slow:
            raise DeclinedError(51, data, "abc") from slow

    async def fail_async(data: str) -> None:
        fail(data)

    emails.handler(max_retries=1, min_backoff=0, redact=hide_cards)(
        fail_async if is_async else fail
    )

    @emails.fail_handler
    async def tell(data: Any, job: Job, error: JobError) -> None:
        errors.append(error)
        seen.add(data, job)

    await emails.dispatch("4000", id="job")
    async with working(client):
        (job,) = await seen.runs(1)
        await until_empty(emails.fail_queue)
    (error,) = errors
    assert error.attributes == {"code": 51, "card": "****", "token": "[redacted]"}
    (cause,) = error.causes
    assert (cause.type, cause.message) == ("OSError", "[Errno 28] no space")
    assert cause.attributes == {"errno": 28, "strerror": "no space"}
    assert job.error == error
    listed: Any = await emails.get("job")
    assert listed.error == error


async def test_error_of_a_lease_has_its_attributes(client: Client, emails: Queue) -> None:
    await emails.dispatch(1, id="job")
    with pytest.raises(DeclinedError):
        async with emails.lease():
            raise DeclinedError(51, "4000", "abc")
    job: Any = await emails.get("job")
    assert job.error.attributes == {"code": 51, "card": "4000", "token": "[redacted]"}
    await emails.cancel("job")
    await emails.dispatch(1, id="job")
    async with emails.lease() as lease:
        await lease.fail(DeclinedError(52, "4000", "abc"))
    job = await emails.get("job")
    assert job.error.attributes["code"] == 52


async def test_attributes_that_cannot_be_read_do_not_hide_the_error(
    client: Client, emails: Queue
) -> None:
    """Another program may write anything into the record of an error."""
    for details in ("{", "[]", "5", '{"a": 1e999}', '{"1": 2'):
        await emails.dispatch(1, id="job")
        lease: Any = await emails.lease()
        record = _ErrorRecord("E", "no", attributes=details, causes=details)
        command = lease._commands.settle([Ending(lease.job.id, lease.token, Fail(JobError("E")))])
        packed = msgspec.msgpack.encode({"error": record})
        command = msgspec.structs.replace(command, args=(*command.args[:-1], packed))
        assert await lease._store.run(command) == ["failed"]
        job: Any = await emails.get("job")
        assert (job.readable, job.error.type, job.error.causes) == (True, "E", ())
        await emails.drop("job")


async def test_run_with_an_unlimited_timeout_is_not_ended(
    client: Client, emails: Queue, seen: Seen
) -> None:
    """The job's own "unlimited" overrides the timeout of its handler."""

    @emails.handler(timeout=0.1)
    async def handle(data: Any, job: Job) -> None:
        await asyncio.sleep(0.5)
        seen.add(data, job)

    await emails.dispatch("short", id="short")
    await emails.dispatch("long", id="long", options=JobOptions(timeout="unlimited"))
    async with working(client):
        (job,) = await seen.runs(1)
        assert job.id == "long"
        short: Any = await emails.get("short")
        while not short.timeout_count:
            await asyncio.sleep(0.01)
            short = await emails.get("short")
    await emails.cancel("short")
