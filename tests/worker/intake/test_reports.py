"""Outcomes that the server refuses together are reported one by one."""

from typing import Any

import pytest

from queasy import Client, Dispatch, Queue
from queasy.errors import Unreachable
from queasy.outcomes import Finish, RetryLater
from queasy.store.command import Command
from queasy.store.store import AsyncStore
from queasy.worker.execution import executor
from queasy.worker.intake import subscription
from tests.worker.inline import until_empty, until_state, working


async def test_outage_while_outcomes_are_reported_one_by_one_is_waited_for(
    client: Client,
    emails: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bug: an unreachable server was logged as an internal error of the worker.

    The server does not answer the first report of any outcome: neither of the outcome that it
    refuses, nor of the failure that replaces it, nor of the other job's outcome.
    """
    run, sent = AsyncStore.run, set[tuple[Any, ...]]()

    async def fail_once(store: AsyncStore, command: Command[Any], *more: Any) -> Any:
        if command.function == "settle" and command.args not in sent:
            sent.add(command.args)
            raise Unreachable("the server is away")
        return await run(store, command, *more)

    never = RetryLater(at=float("nan"))
    monkeypatch.setattr(
        executor, "outcome_of", lambda result, redact: never if result else Finish()
    )
    monkeypatch.setattr(AsyncStore, "run", fail_once)
    monkeypatch.setattr(subscription, "RETRY_PAUSE", 0.2)

    @emails.handler
    async def handle(data: str) -> object:
        return data == "bad"

    await emails.dispatch_many([Dispatch("bad", id="bad"), Dispatch("good", id="good")])
    async with working(client):
        job = await until_state(emails, "bad", "failed")
        await until_empty(emails)
    assert job.error is not None
    assert job.error.type == "EndingRefused"
    assert len(sent) == 3
    assert "server_unreachable" in caplog.text
    assert "internal_error" not in caplog.text
