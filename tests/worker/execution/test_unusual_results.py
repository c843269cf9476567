"""Unusual results of handlers, and mistakes in an application: the outcome and the log."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from queasy import Client, Failure, Queue, Retry
from queasy.worker.app import load
from queasy.worker.logs import set_up
from tests.worker.fleet import ON_ONE_SERVER
from tests.worker.inline import until_state, working

Handler = Callable[[Any], Awaitable[Any]]


async def send(data: Any) -> None:
    raise AssertionError("expected a coroutine that is not awaited never to run")


async def forgets_await(data: Any) -> Any:
    return send(data)


async def returns_failure_class(data: Any) -> Any:
    return Failure


async def raises_failure(data: Any) -> Any:
    raise Failure("the reason")


@ON_ONE_SERVER
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (forgets_await, "forgets_await returned a coroutine that is never awaited"),
        (returns_failure_class, "Failure: "),
        (raises_failure, "Failure: the reason"),
    ],
)
async def test_handler_that_fails_or_forgets_await_does_not_succeed(
    client: Client, emails: Queue, handler: Handler, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    emails.handler(max_retries=0)(handler)
    await emails.dispatch(None, id="a")
    with caplog.at_level(logging.INFO):
        async with working(client):
            job = await until_state(emails, "a", "failed")
    assert job.error is not None
    assert error in f"{job.error.type}: {job.error.message}"
    logged = [r for r in caplog.records if r.name == "queasy.handler"]
    assert [getattr(r, "fields", {})["job"] for r in logged] == (
        [] if handler is returns_failure_class else ["a"]
    )
    assert handler is not raises_failure or "handler_message queue=emails job=a" in caplog.text
    assert handler is not raises_failure or "message='the reason'" in caplog.text
    assert handler is not forgets_await or "handler_raised queue=emails job=a" in caplog.text


@ON_ONE_SERVER
async def test_retry_class_without_parentheses_retries_the_job(
    client: Client, emails: Queue
) -> None:
    @emails.handler(min_backoff=100)
    async def returns_retry_class(data: Any) -> Any:
        return Retry

    await emails.dispatch(None, id="a")
    async with working(client):
        job = await until_state(emails, "a", "scheduled")
    assert job.retry_count == 1


def test_set_up_enables_loggers_that_a_configuration_disabled() -> None:
    """`dictConfig` disables every logger that exists when it is called."""
    loggers = [logging.getLogger(name) for name in ("queasy", "queasy.worker", "queasy.handler")]
    for logger in loggers:
        logger.disabled = True
    set_up("info", "text")
    assert not any(logger.disabled for logger in loggers)


def test_error_names_the_module_that_the_application_cannot_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the name of the application begins with the name of the missing module."""
    (tmp_path / "absent_jobs.py").write_text("import absent")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'absent'$"):
        load("absent_jobs:client")
