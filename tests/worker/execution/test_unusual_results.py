"""What a handler returns or raises that is easily got wrong, and what is said of it."""

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
    raise AssertionError("nobody awaits it")


async def forgets_await(data: Any) -> Any:
    return send(data)


async def gives_up(data: Any) -> Any:
    return Failure


async def raises(data: Any) -> Any:
    raise Failure("the reason")


@ON_ONE_SERVER
@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (forgets_await, "forgets_await returned a coroutine that is never awaited"),
        (gives_up, "Failure: "),
        (raises, "Failure: the reason"),
    ],
)
async def test_it_is_no_success(
    client: Client, emails: Queue, handler: Handler, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    emails.handler(max_retries=0)(handler)
    await emails.dispatch(None, id="a")
    with caplog.at_level(logging.INFO):
        async with working(client):
            job = await until_state(emails, "a", "failed")
    assert job.error is not None
    assert why in f"{job.error.type}: {job.error.message}"
    said = [r for r in caplog.records if r.name == "queasy.handler"]
    assert [getattr(r, "fields", {})["job"] for r in said] == ([] if handler is gives_up else ["a"])
    assert handler is not raises or "handler_message queue=emails job=a" in caplog.text
    assert handler is not raises or "message='the reason'" in caplog.text
    assert handler is not forgets_await or "handler_raised queue=emails job=a" in caplog.text


@ON_ONE_SERVER
async def test_a_retry_needs_no_parentheses(client: Client, emails: Queue) -> None:
    @emails.handler(min_backoff=100)
    async def later(data: Any) -> Any:
        return Retry

    await emails.dispatch(None, id="a")
    async with working(client):
        job = await until_state(emails, "a", "scheduled")
    assert job.retry_count == 1


def test_loggers_that_a_configuration_silenced_speak_again() -> None:
    """As `dictConfig` does with all that are there when it is called."""
    loggers = [logging.getLogger(name) for name in ("queasy", "queasy.worker", "queasy.handler")]
    for logger in loggers:
        logger.disabled = True
    set_up("info", "text")
    assert not any(logger.disabled for logger in loggers)


def test_what_an_application_lacks_is_not_taken_for_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its name begins with that name."""
    (tmp_path / "absent_jobs.py").write_text("import absent")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'absent'$"):
        load("absent_jobs:client")
