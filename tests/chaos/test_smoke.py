"""A short run of the harness: that it works, and that Queasy does."""

from pathlib import Path
from random import SystemRandom

import pytest

from tests.chaos import faults
from tests.chaos.__main__ import run
from tests.chaos.scenes import Scene
from tests.servers import ServerKind
from tests.worker.fleet import ON_ONE_SERVER

# Nothing but kills: of the other faults a single one may last as long as this run.
KILLS = Scene(
    "kills",
    "kills of processes and of the server",
    {faults.kill_child: 3, faults.kill_worker: 1, faults.kill_producer: 1, faults.kill_server: 3},
    3.0,
)


@ON_ONE_SERVER
@pytest.mark.timeout(400)
def test_processes_and_servers_are_killed_and_every_promise_is_kept(
    kind: ServerKind, tmp_path: Path
) -> None:
    seed = str(SystemRandom().randrange(10**9))
    found = run(KILLS, kind, seed, 8.0, keep=tmp_path)
    assert found.counts["accepted"] > 100
    assert found.process_kills + found.server_kills
    assert not any(found.broken.values()), found.broken
