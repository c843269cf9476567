"""A clock that stands still, for states of queues."""

import pytest

from queasy.worker.intake import queue_state
from tests.worker.intake.services import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(queue_state, "time", clock)
    return clock
