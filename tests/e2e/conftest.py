"""What several of these tests need."""

from collections.abc import AsyncIterator

import pytest

from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as running:
        yield running
