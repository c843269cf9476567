"""The users in the documents can do what they must, and no more."""

import asyncio
import re
from pathlib import Path

import pytest

from queasy import AccessDenied, Client, Failure, JobOptions
from tests.servers import Server, ServerKind, start_server

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def user_of(server: Server, name: str) -> str:
    """Creates a user as the document says; its URL."""
    rules = re.search(rf"^ACL SETUSER {name} (.*)$", PROTOCOL, re.M)
    assert rules is not None
    server.client().execute_command("ACL", "SETUSER", name, *rules[1].split())
    return server.tcp_url.replace("redis://", f"redis://{name}:secret@")


async def test_a_worker_can_do_everything(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(user_of(server, "worker")) as client:
            queue = client.queue("q")
            await queue.configure(fail_handler=True, limits=JobOptions(max_retries=1))
            await queue.dispatch_many([1, 2, 3])
            await queue.dispatch(4, id="four", delay=60)
            await queue.cancel("four")
            async with queue.lease() as lease:
                assert lease is not None
                await queue.cancel(lease.job.id, running=True)
                await lease.extend(5)
            for _ in range(2):
                lease = await queue.lease()
                assert lease is not None
                await lease.fail("no")
            async with queue.fail_queue.lease() as failure:
                assert failure is not None
            assert await queue.lease(timeout=0.05) is None
            assert await queue.requeue([job.id async for job in queue.jobs("failed")]) == 2
            await queue.pause()
            await queue.resume()
            await queue.trim(0)
            await queue.sweep()
            assert [await queue.counts(), await queue.stats(), await queue.clients()]
            assert await queue.audit() == []


async def test_a_worker_can_run_handlers(kind: ServerKind) -> None:
    with start_server(kind, appendonly=True) as server:
        async with Client(user_of(server, "worker")) as client:
            queue, ran = client.queue("q"), asyncio.Event()
            queue.handler(lambda: Failure("no"))

            @queue.fail_handler
            async def gave_up() -> None:
                ran.set()

            worker = client.worker(signals=False)
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await queue.dispatch(1)
                await asyncio.wait_for(ran.wait(), 30)
                assert await client.tell_workers("serve", "q") == 1
                worker.stop()
            assert (await queue.counts()).failed == 1


async def test_a_viewer_can_only_look(kind: ServerKind) -> None:
    with start_server(kind) as server:
        async with Client(server.url) as owner:
            await owner.queue("q").dispatch(1, id="a")
        async with Client(user_of(server, "viewer")) as client:
            queue = client.queue("q")
            assert (await queue.counts()).waiting == 1
            assert [job.id async for job in queue.jobs()] == ["a"]
            assert await queue.get("a")
            assert await queue.audit() == []
            for write in (queue.dispatch(2), queue.cancel("a"), queue.pause(), queue.sweep()):
                with pytest.raises(AccessDenied):
                    await write
            with pytest.raises(AccessDenied):
                await queue.lease(timeout=0)
            assert (await queue.counts()).waiting == 1
