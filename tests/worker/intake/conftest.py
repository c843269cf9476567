"""A clock that stands still, for states of queues."""

import pytest

from queasy.worker.intake import portions, queue_state, unreported
from tests.worker.intake.services import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (portions, queue_state, unreported):
        monkeypatch.setattr(module, "time", clock)
    return clock
