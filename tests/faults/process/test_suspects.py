"""Jobs that ran in a process that died, and the workers that take them next."""

import signal

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.fleet import ON_ONE_SERVER, Fleet


@ON_ONE_SERVER
def test_suspect_does_not_block_a_worker_with_a_long_run(
    fleet: Fleet, sync_client: SyncClient
) -> None:
    """Bug: the suspect was deferred until the long run had ended, and so were all other jobs."""
    crashing = fleet.serve("--queue", "poison", processes=1)
    sync_client.queue("poison").dispatch({"first": {"sleep": 60}, "then": {}}, id="suspect")
    fleet.journal.wait_for("start", id="suspect")
    busy = fleet.serve("--queue", "waits", "--queue", "poison", "--queue", "plain", processes=1)
    sync_client.queue("waits").dispatch({"sleep": 30}, id="long")
    fleet.journal.wait_for("start", id="long")
    (child,) = crashing.children()
    crashing.signal(signal.SIGSTOP)  # so that it starts no process that could take the suspect
    sync_client.queue("poison").evict(_client_of(sync_client), died=True)
    wait_until(lambda: bool(busy.events("job_released")), "it releases the suspect")
    sync_client.queue("plain").dispatch({}, id="other")
    fleet.journal.wait_for("end", id="other", seconds=15)
    assert not fleet.journal.lines("end", id="long")
    del child


def _client_of(client: SyncClient) -> str:
    (holder,) = [info.id for info in client.queue("poison").clients() if info.leases]
    return holder
