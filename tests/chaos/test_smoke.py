"""A short run of the harness: that it works, and that Queasy does."""

from pathlib import Path
from random import SystemRandom

import pytest

from tests.chaos.__main__ import run
from tests.servers import ServerKind
from tests.worker.fleet import ON_ONE_SERVER


@ON_ONE_SERVER
@pytest.mark.timeout(400)
def test_processes_and_servers_are_killed_and_every_promise_is_kept(
    kind: ServerKind, tmp_path: Path
) -> None:
    found = run("server", kind, str(SystemRandom().randrange(10**9)), 8.0, keep=tmp_path)
    assert found.counts["accepted"] > 500
    assert found.process_kills
    assert not any(found.broken.values()), found.broken
