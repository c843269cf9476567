"""Consumers for code that does not await: a thread keeps the leases alive."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from queasy import (
    ClientClosed,
    InvalidOption,
    InvalidQueue,
    LeaseLost,
    QueasyError,
    SyncClient,
    SyncConsumer,
    SyncConsumerLease,
    UndecodablePayload,
    Unreachable,
)
from tests.servers import Server, ServerKind, free_port, start_server, wait_until


def take(jobs: SyncConsumer, count: int) -> list[SyncConsumerLease]:
    return [next(jobs) for _ in range(count)]


def test_thread_keeps_ten_leases_longer_than_their_length(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(10))
    with queue.consumer(concurrency=10, lease=3) as jobs:
        leases = take(jobs, 10)
        (holder,) = queue.clients()
        assert (holder.id, holder.leases) == (jobs.id, 10)
        ends = time.monotonic() + 2 * 3
        while time.monotonic() < ends:  # other clients return the jobs of dead ones
            assert queue.lease(timeout=0.5) is None
        assert not any(lease.lost or lease.should_stop.is_set() for lease in leases)
        assert all(lease.complete() for lease in leases)
    assert queue.clients() == []


def test_consumer_hands_out_no_job_that_it_has_lost(sync_client: SyncClient) -> None:
    """Bug: jobs that were not begun when the consumer was evicted were handed out afterwards."""
    queue = sync_client.queue("q")
    queue.dispatch_many(range(3))
    with queue.consumer(concurrency=3) as evicted:
        (begun,) = take(evicted, 1)
        assert queue.evict(evicted.id, died=False) == 3
        others = [queue.lease(timeout=0) for _ in range(3)]
        assert begun.should_stop.wait(10)
        for other in others:
            assert other is not None
            other.complete()
        queue.dispatch(3, id="new")
        (lease,) = take(evicted, 1)
        assert (lease.job.id, lease.lost, lease.ended) == ("new", False, None)
        lease.complete()


def test_threads_work_on_at_most_as_many_jobs_as_the_concurrency(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(100))
    done: list[int] = []
    most = 0

    def work(lease: SyncConsumerLease) -> None:
        nonlocal most
        with lease:
            most = max(most, queue.counts().active)
            done.append(lease.data)

    with queue.consumer(concurrency=4) as jobs, ThreadPoolExecutor(8) as pool:
        working = []
        for lease in jobs:
            working.append(pool.submit(work, lease))
            if len(working) == 100:
                jobs.stop()
        for one in working:
            one.result(10)
    assert sorted(done) == list(range(100))
    assert most <= 4


def test_iteration_waits_for_room(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(3))
    with queue.consumer(concurrency=2) as jobs, ThreadPoolExecutor(1) as pool:
        first, second = take(jobs, 2)
        following = pool.submit(next, jobs)
        for _ in range(20):
            assert queue.counts().active == 2
        assert not following.done()
        assert first.complete()
        third = following.result(10)
        assert queue.counts().active == 2
        assert second.complete()
        assert third.complete()


def test_stop_in_a_signal_handler_ends_the_loop(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    before = signal.getsignal(signal.SIGUSR1)
    with queue.consumer() as jobs:
        signal.signal(signal.SIGUSR1, lambda *_: jobs.stop())

        def interrupt() -> None:
            wait_until(lambda: queue.counts().waiters == 1, "the loop waits")
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            assert list(jobs) == []
        finally:
            thread.join(10)
            signal.signal(signal.SIGUSR1, before)


def test_stop_releases_what_was_not_begun_and_counts_nothing(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(5))
    with queue.consumer(concurrency=5) as jobs:
        (begun,) = take(jobs, 1)
        jobs.stop()
        assert list(jobs) == []
        wait_until(lambda: queue.counts().due == 4, "the others are released")
        assert {(job.retry_count, job.stall_count) for job in queue.jobs()} == {(0, 0)}
        assert begun.complete()


def test_leaving_the_block_releases_all_and_ends_the_thread(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch_many(range(3))
    threads = threading.active_count()
    with queue.consumer(concurrency=3) as jobs:
        (begun,) = take(jobs, 1)
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    assert (queue.counts().due, queue.counts().clients) == (3, 0)
    assert (begun.ended, begun.should_stop.is_set()) == ("lost", True)
    assert not begun.complete()


def test_cancel_and_eviction_are_seen_in_other_threads(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    queue.dispatch(1, id="a")
    queue.dispatch(2, id="b")
    with queue.consumer(concurrency=2) as jobs:
        first, second = take(jobs, 2)
        assert queue.cancel("a", running=True)
        assert first.should_stop.wait(10)
        assert (first.cancelled, first.lost) == (True, False)
        assert first.cancel()
        assert queue.evict(jobs.id, died=False) == 1
        assert second.should_stop.wait(10)
        assert second.lost
        (again,) = take(jobs, 1)
        assert again.job.id == "b"
        assert again.job.client != jobs.id
        with again:
            pass
        assert again.ended == "finished"


@pytest.mark.parametrize("learns", [False, True], ids=["unknown", "known"])
def test_with_block_of_a_lost_lease_raises(sync_client: SyncClient, learns: bool) -> None:
    """Bug: it did not if the consumer had learned of the loss before the block ended."""
    queue = sync_client.queue("q")
    queue.dispatch(1)

    def work(lease: SyncConsumerLease, evict: str) -> None:
        with lease:
            queue.evict(evict, died=False)
            assert not learns or lease.should_stop.wait(10)

    with queue.consumer(concurrency=1) as jobs:
        (lease,) = take(jobs, 1)
        with pytest.raises(LeaseLost):
            work(lease, jobs.id)


def test_several_queues_and_their_codecs(sync_client: SyncClient) -> None:
    raw = sync_client.queue("raw", codec="raw")
    raw.dispatch(b"bytes")
    sync_client.queue("json").dispatch({"a": 1})
    with sync_client.consumer([raw, "json"], concurrency=2) as jobs:
        found = {}
        for lease in take(jobs, 2):
            found[lease.job.queue] = lease.data
            lease.complete()
    assert found == {"raw": b"bytes", "json": {"a": 1}}


def test_consumer_works_through_a_restart_of_the_server(kind: ServerKind) -> None:
    with (
        start_server(kind, appendonly=True, appendfsync="always") as server,
        SyncClient(server.url, timeout=0.5) as client,
    ):
        queue = client.queue("q")
        queue.dispatch_many(["held", "waiting"])
        with queue.consumer(concurrency=1, lease=3) as jobs:
            (held,) = take(jobs, 1)
            server.stop()
            with pytest.raises(Unreachable):
                held.complete()
            server.start()
            (waiting,) = take(jobs, 1)  # the consumer has reported the first
            assert waiting.data == "waiting"
            assert waiting.complete()
        assert queue.counts().active == 0
        assert queue.audit() == []


def test_undecodable_payloads_end_the_loop(sync_client: SyncClient) -> None:
    raw = sync_client.queue("q", codec="raw")
    raw.dispatch_many(b"{not json %d" % n for n in range(20))
    with (
        pytest.raises(UndecodablePayload, match="Is this the codec"),
        sync_client.queue("q").consumer(concurrency=20) as jobs,
    ):
        next(jobs)
    assert (raw.counts().broken, raw.counts().waiting) == (10, 10)


def test_misuse_is_refused(sync_client: SyncClient) -> None:
    queue = sync_client.queue("q")
    with pytest.raises(InvalidOption, match="concurrency: expected a whole number from 1"):
        queue.consumer(concurrency=0)
    with pytest.raises(InvalidOption, match="lease: expected 3 to 86400 seconds"):
        queue.consumer(lease=1)
    with pytest.raises(InvalidQueue, match="each queue once"):
        sync_client.consumer(["a", "a"])
    jobs = queue.consumer()
    with pytest.raises(QueasyError, match="iterate inside its block"):
        next(jobs)
    with jobs, ThreadPoolExecutor(1) as pool:
        with pytest.raises(QueasyError, match="was entered before"):
            jobs.__enter__()
        waiting = pool.submit(list, jobs)
        wait_until(lambda: queue.counts().waiters == 1, "the other thread waits")
        with pytest.raises(QueasyError, match="another thread iterates"):
            next(jobs)
        jobs.stop()
        assert waiting.result(10) == []
    with pytest.raises(QueasyError, match="iterate inside its block"):
        next(jobs)


def test_closing_the_client_ends_the_iteration(server: Server, prefix: str) -> None:
    client = SyncClient(server.url, prefix=prefix)
    queue = client.queue("q")
    with queue.consumer() as jobs, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, jobs)
        wait_until(lambda: queue.counts().waiters == 1, "the other thread waits")
        client.close()
        with pytest.raises(ClientClosed):
            waiting.result(10)
    client.close()


def test_entering_raises_when_the_server_was_never_reached() -> None:
    threads = threading.active_count()
    client = SyncClient(f"redis://127.0.0.1:{free_port()}", timeout=0.5)
    with pytest.raises(Unreachable), client.queue("q").consumer():
        pass
    assert threading.active_count() == threads
