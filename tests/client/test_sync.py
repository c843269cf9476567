"""The sync façade: the same commands, without awaiting."""

import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from queasy import (
    Client,
    ClientClosed,
    Dispatch,
    JobOptions,
    Lease,
    Queue,
    SyncClient,
    SyncLease,
    SyncQueue,
)
from tests.servers import Server, wait_until


def test_sync_job_runs_from_dispatch_to_complete(sync_client: SyncClient) -> None:
    queue = sync_client.queue("emails")
    assert queue.dispatch({"to": "x"}, id="a").status == "created"
    lease = queue.lease(seconds=60, timeout=5)
    assert lease is not None
    assert lease.data == {"to": "x"}
    assert queue.dispatch({"to": "y"}, id="a").status == "blocked"
    assert lease.complete()
    assert not lease.complete()
    with queue.lease() as again:  # type: ignore[union-attr]
        assert again.data == {"to": "y"}
    assert queue.counts().waiting == 0


def test_a_with_block_retries_on_an_exception(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch(1, id="a", options=JobOptions(min_backoff=60))
    with pytest.raises(ZeroDivisionError), queue.lease():  # type: ignore[union-attr]
        _ = 1 / 0
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.retry_count) == ("scheduled", 1)


def test_sync_lease_waits_for_a_wake_up(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    got: list[object] = []

    def pull() -> None:
        lease = queue.lease(timeout=30)
        assert lease is not None
        got.append(lease.data)
        lease.complete()

    thread = threading.Thread(target=pull)
    thread.start()
    wait_until(lambda: queue.counts().waiters == 1, "the thread waits")
    queue.dispatch("now")
    thread.join(10)
    assert got == ["now"]
    assert queue.lease(timeout=0.05) is None


def test_threads_share_a_client(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(400))
    done: list[int] = []

    def pull() -> None:
        while lease := queue.lease(timeout=0):
            if lease.complete():
                done.append(lease.data)

    threads = [threading.Thread(target=pull) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == list(range(400))


FORKS = """
import os, sys
from queasy import SyncClient

client = SyncClient(sys.argv[1], prefix=sys.argv[2])
queue = client.queue("q")


def dispatch(who):
    for n in range(100):
        id_ = f"{who}-{n}"
        done = queue.dispatch({"by": id_}, id=id_)
        assert (done.id, done.status) == (id_, "created"), done
        assert queue.dispatch({"by": who}).status == "created"  # with an id of its own
        job = queue.get(id_)
        assert job is not None and job.data == {"by": id_}, job


dispatch("before")
children = []
for number in range(4):
    pid = os.fork()
    if not pid:
        dispatch(f"child{number}")
        os._exit(0)
    children.append(pid)
dispatch("parent")
codes = [os.waitpid(pid, 0)[1] for pid in children]
sys.exit(f"children ended with {codes}" if any(codes) else 0)
"""


def test_client_that_dispatched_before_a_fork_serves_parent_and_children(
    server: Server, prefix: str, sync_client: SyncClient
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, server.url, prefix],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sync_client.queue("q").counts().waiting == 6 * 200


def test_sync_queue_has_the_methods_operators_use(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.configure(failed_limit=2, fail_handler=False)
    for n in range(3):
        queue.dispatch(n, id=str(n))
        lease = queue.lease(timeout=1)
        assert lease is not None
        assert lease.fail("no")
    assert [job.id for job in queue.jobs("failed")] == ["2", "1"]
    assert queue.requeue(["1", "0"]) == 1
    assert queue.cancel("1").status == "cancelled"
    assert not queue.cancel("1")
    assert queue.trim(0) == 1
    assert queue.drop("2") == 0
    queue.pause()
    queue.dispatch_many([Dispatch(1, id="z")])
    assert queue.lease(timeout=0) is None
    queue.resume()
    with queue.lease() as lease:  # type: ignore[union-attr]
        assert queue.cancel("z").status == "active"
        assert queue.evict(lease.job.client, died=False) == 1
        assert not lease.release()
    assert queue.cancel("z")
    assert queue.sweep() == 0
    assert queue.clients() == []
    assert queue.stats()


# Workers and orders to workers need an event loop.
ASYNC_ONLY = {"listen", "plan", "tell_workers", "work", "worker", "workers"}
PAIRS = [(Client, SyncClient), (Queue, SyncQueue), (Lease, SyncLease)]


@pytest.mark.parametrize(("awaits", "sync"), PAIRS)
def test_sync_classes_have_the_methods_and_signatures_of_the_async_ones(
    awaits: type, sync: type
) -> None:
    public = {name for name in vars(awaits) if not name.startswith("_")} - ASYNC_ONLY
    assert public <= {name for name in dir(sync) if not name.startswith("_")}
    for name in public - {"lease", "consumer"}:  # these name other types
        ours, theirs = getattr(awaits, name), getattr(sync, name)
        if callable(ours):
            wanted = inspect.signature(ours).parameters
            assert inspect.signature(theirs).parameters == wanted, name
            assert theirs.__doc__, f"{sync.__name__}.{name} says nothing"


def test_thousands_of_records_are_requeued_and_dropped(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.configure(failed_limit=5000)
    queue.dispatch_many(Dispatch(n, id=str(n)) for n in range(2500))
    while lease := queue.lease(600, timeout=0):
        assert lease.fail()
    ids = [job.id for job in queue.jobs("failed")]
    assert len(ids) == 2500
    assert queue.requeue(ids[:1200]) == 1200
    assert queue.drop(ids) == 1300
    assert queue.counts().waiting == 1200


def test_close_ends_a_lease_that_waits_in_another_thread(
    server: Server, prefix: str, sync_client: SyncClient
) -> None:
    """Bug: the waiting lease took a job through the closed client."""
    closed = SyncClient(server.url, prefix=prefix)
    emails = sync_client.queue("emails")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(closed.queue("emails").lease, 30, timeout=30) for _ in range(4)]
        wait_until(lambda: emails.counts().waiters == 4, "all threads wait")
        closed.close()
        for one in waiting:
            with pytest.raises(ClientClosed):
                one.result(5)
    emails.dispatch("a", id="a")
    assert emails.counts().active == 0
    lease = emails.lease(timeout=0)
    assert lease is not None
    assert lease.complete()
