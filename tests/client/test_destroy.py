"""Queue.destroy, and the longest lease, of both clients."""

from datetime import timedelta

import pytest

from queasy import Client, InvalidOption, QueueInUse, SyncClient
from tests.servers import Server


async def test_a_destroyed_queue_is_empty_and_can_be_used_again(
    client: Client, prefix: str, server: Server
) -> None:
    queue = client.queue("q")
    await queue.configure(failed_limit=3)
    await queue.dispatch_many([1, 2, 3])
    async with queue.lease() as lease:
        assert lease is not None
    await queue.destroy()
    assert [key for key in server.client().keys(f"{prefix}:*") if not key.endswith("meta")] == []
    assert (await queue.counts()).waiting == 0
    await queue.dispatch(1, id="a")
    assert [job.id async for job in queue.jobs()] == ["a"]


async def test_a_queue_with_active_jobs_is_not_destroyed_without_force(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch_many([1, 2])
    lease = await queue.lease()
    with pytest.raises(
        QueueInUse, match=r"1 job is active, and 1 worker or other client is reg.*force=True"
    ):
        await queue.destroy()
    assert (await queue.counts()).waiting == 1
    await queue.destroy(force=True)
    assert not await lease.complete()
    assert (await queue.counts()).waiting == 0


def test_sync_clients_destroy_queues_too(server: Server, prefix: str) -> None:
    with SyncClient(server.url, prefix=prefix) as client:
        queue = client.queue("q")
        queue.dispatch(1)
        lease = queue.lease()
        with pytest.raises(QueueInUse):
            queue.destroy()
        queue.destroy(force=True)
        assert not lease.complete()


async def test_a_lease_of_more_than_a_day_is_refused(client: Client) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    with pytest.raises(InvalidOption, match="at most 86400 seconds"):
        await queue.lease(timedelta(days=1, seconds=1))
    lease = await queue.lease(timedelta(days=1))
    with pytest.raises(InvalidOption, match="at most 86400 seconds"):
        await lease.extend(86_401)
    assert await lease.extend(86_400)
    assert await lease.complete()
