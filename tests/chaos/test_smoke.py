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
    seed = str(SystemRandom().randrange(10**9))
    found = run("server", kind, seed, 8.0, keep=tmp_path, faults=4.0)
    assert found.counts["accepted"] > 300
    # Which of them, the seed decides; that it is none of a dozen faults, it does not.
    assert found.process_kills + found.server_kills
    assert not any(found.broken.values()), found.broken
