"""A short run of the chaos program, with real processes and a real server."""

from pathlib import Path
from random import SystemRandom

import pytest

from tests.chaos.faults import processes, server
from tests.chaos.run import run
from tests.chaos.scenes import Scene
from tests.servers import ServerKind
from tests.worker.fleet import ON_ONE_SERVER

# Only kills: one of the other faults may last as long as this run.
KILLS = Scene(
    "kills",
    "processes and the server are killed",
    {
        processes.kill_worker_process: 3,
        processes.kill_supervisor: 1,
        processes.kill_producer: 1,
        server.kill_server: 3,
    },
    3.0,
)


@ON_ONE_SERVER
@pytest.mark.timeout(400)
def test_every_promise_is_kept_while_processes_and_servers_are_killed(
    kind: ServerKind, tmp_path: Path
) -> None:
    seed = str(SystemRandom().randrange(10**9))
    found = run(KILLS, kind, seed, 8.0, keep=tmp_path)
    assert found.counts["dispatches accepted"] > 100
    assert found.process_kills + found.server_kills
    assert not any(found.violations.values()), found.violations
