"""The library keeps every promise, on both servers."""

import pytest

from tests.store import (
    promises,
    promises_bounds,
    promises_consumers,
    promises_dispatch,
    promises_given_up,
    promises_handoff,
    promises_idempotency,
    promises_limits,
    promises_order,
    promises_outages,
    promises_plain,
    promises_protocol,
    promises_server,
    promises_suspects,
    promises_waiters,
    promises_waking,
)
from tests.store.harness import Harness
from tests.store.promise import PROMISES

ENLISTED = (  # importing them registers their promises
    promises, promises_bounds, promises_consumers, promises_dispatch, promises_given_up,
    promises_handoff, promises_idempotency, promises_limits, promises_order, promises_outages,
    promises_plain, promises_protocol, promises_server, promises_suspects,
    promises_waiters, promises_waking,
)  # fmt: skip


@pytest.mark.parametrize("name", PROMISES)
def test_promise(h: Harness, name: str) -> None:
    PROMISES[name](h)
