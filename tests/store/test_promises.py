"""Every promise is kept, on both servers."""

import pytest

from tests.store import promises, promises_dispatch, promises_order, promises_server
from tests.store.harness import Harness
from tests.store.promise import PROMISES

ENLISTED = (promises, promises_dispatch, promises_order, promises_server)  # by being imported


@pytest.mark.parametrize("name", PROMISES)
def test_promise(h: Harness, name: str) -> None:
    PROMISES[name](h)
