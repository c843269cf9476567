"""Queues of Node over connections that are cut, and as a user with few permissions."""

import asyncio
import random
import re
import time

import pytest
from redis.crc import key_slot

from queasy import AccessDenied, Client, SyncClient, Unanswered
from queasy.interop import node
from tests.access import PASSWORD
from tests.docs.pages import DOCS
from tests.groups import start_cluster
from tests.interop.node.harness import NodeQueue
from tests.interop.test_workqueue_faults import refusals
from tests.proxy import Proxy
from tests.servers import ServerKind, start_server

GUIDE = DOCS / "guides" / "coming-from-queasy-for-node.md"
FAR = 60.0


async def test_jobs_of_a_dequeue_whose_answer_was_lost_return_at_once(
    proxy: Proxy, foreign: NodeQueue
) -> None:
    foreign.dispatch("a")
    async with Client(proxy.url) as client:
        emails = node.Queue(client, foreign.key)
        proxy.lose_answer_to("queasy_dequeue")
        (job,) = await emails.dequeue(timeout=30, expires_in=FAR)
        assert proxy.lost == 1
        assert (job.id, job.stall_count) == ("a", 1)
        assert await emails.finish(job)
        assert await emails.counts() == (0, 0, 0)


async def test_sync_jobs_of_a_dequeue_whose_answer_was_lost_return_at_once(
    proxy: Proxy, foreign: NodeQueue
) -> None:
    foreign.dispatch("a")
    client = SyncClient(proxy.url)  # the proxy is in this event loop, so a thread connects
    try:
        emails = node.Queue(client, foreign.key)
        proxy.lose_answer_to("queasy_dequeue")

        def take() -> node.Job:
            (job,) = emails.dequeue(timeout=30, expires_in=FAR)
            return job

        job = await asyncio.to_thread(take)
        assert (job.id, job.stall_count) == ("a", 1)
        assert await asyncio.to_thread(emails.finish, job)
    finally:
        client.close()


@pytest.mark.parametrize("verb", ["finish", "retry", "fail"])
async def test_end_whose_answer_was_lost_is_not_reported_as_refused(
    proxy: Proxy, foreign: NodeQueue, verb: str
) -> None:
    arguments = {"finish": (), "retry": (), "fail": ("no",)}
    foreign.dispatch("a")
    async with Client(proxy.url) as client:
        emails = node.Queue(client, foreign.key)
        (job,) = await emails.dequeue(expires_in=FAR)
        proxy.lose_answer_to(f"queasy_{verb}")
        with pytest.raises(Unanswered, match=f"{verb} of Node queue"):
            await getattr(emails, verb)(job, *arguments[verb])
        assert proxy.lost == 1
        assert await emails.counts() == (int(verb == "retry"), 0, 0)
        assert len(await emails.fail_queue.dequeue(10)) == int(verb == "fail")


@pytest.mark.parametrize("moved", [1, 2, 3, 4, 5, 6])
async def test_slot_that_moves_delays_calls_and_each_takes_effect_once(
    kind: ServerKind, moved: int
) -> None:
    slot = key_slot(b"emails")
    with start_cluster(kind, primaries=2, replicas=0) as cluster:
        async with Client(cluster.url, timeout=30) as client:
            emails = node.Queue(client, "emails")
            for id_ in ("a", "b", "c", "d"):
                await emails.dispatch(id_, id=id_)
            first, second = await emails.dequeue(2, expires_in=FAR)
            old, new = cluster.primary_of(slot), cluster.other_primary(slot, random.Random())
            await asyncio.to_thread(cluster.begin_migration, slot, new)
            await asyncio.to_thread(cluster.migrate_keys, slot, new, moved)
            calls = asyncio.gather(
                emails.finish(first),
                emails.retry(second, delay=3600),
                emails.dequeue(2, expires_in=FAR),
                emails.dispatch("e", id="e", run_at=time.time() + 3600),
                emails.bump(second),
            )
            async with asyncio.timeout(20):
                while not refusals(old) + refusals(new):
                    await asyncio.sleep(0.01)
            while await asyncio.to_thread(cluster.migrate_keys, slot, new):
                pass
            await asyncio.to_thread(cluster.end_migration, slot, new)
            finished, retried, taken, _, bumped = await calls
            assert (finished, retried, bumped) == (True, True, True)
            assert [job.id for job in taken] == ["c", "d"]
            assert await emails.counts() == (2, 0, 2)
            with new.client() as admin:
                assert NodeQueue(admin, "emails").audit().problems() == []


async def test_user_of_the_guide_can_use_its_queues_and_no_others(kind: ServerKind) -> None:
    rules = re.search(r"^ACL SETUSER interop (.*)$", GUIDE.read_text(), re.M)
    assert rules is not None
    with start_server(kind) as own:
        own.call("ACL", "SETUSER", "interop", "reset", *rules[1].split())
        async with Client(own.url_as("interop", PASSWORD)) as client:
            emails = node.Queue(client, "emails")
            await use_everything(emails)
            with own.client() as admin:  # a record that is moved aside, and a job that stalled
                admin.set("{emails}:waiting_job:b", "text")
                await emails.dispatch(1, id="b")
                await emails.dequeue(expires_in=0.001)
                await emails.dispatch(2, id="b")
                (job,) = await emails.dequeue(timeout=10)
                assert (job.data, await emails.finish(job)) == (2, True)
                assert admin.get("{emails}:broken:waiting_job:b") == "text"
            with pytest.raises(AccessDenied):
                await node.Queue(client, "others").dispatch(1)


async def use_everything(emails: node.Queue[Client]) -> None:
    await emails.dispatch(1, id="a")
    (job,) = await emails.dequeue()
    await emails.dispatch(2, id="a", update_run_at=False)
    assert await emails.bump(job)
    assert await emails.retry(job, delay=0)
    (job,) = await emails.dequeue(timeout=5)
    assert await emails.fail(job, "no")
    (failed,) = await emails.fail_queue.dequeue()
    assert await emails.fail_queue.finish(failed)
    await emails.dispatch(1, id="a")
    assert await emails.cancel("a")
    assert await emails.counts() == (0, 0, 0)
