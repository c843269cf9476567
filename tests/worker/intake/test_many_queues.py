"""A worker with a thousand queues runs their jobs promptly, and looks at none that rests."""

import asyncio
import time

from queasy import Client, Job
from tests.servers import Server
from tests.worker.inline import Seen, working

QUEUES = 1000
# For each queue: three to join it, one dequeue that takes its job, and a few that find none.
CALLS = 12
# Each queue is polled at most this often while it waits, in seconds: see `safety_interval`.
SHORTEST_POLL = 8


async def test_a_thousand_queues_with_one_job_each_take_a_few_calls_each(
    client: Client, seen: Seen, server: Server
) -> None:
    """Bug: each look cost queues times starved queues, and each starved queue was probed every
    second. A worker made 2,600 calls a second, and ran 216 of 1,000 jobs in 100 s."""

    async def handle(data: object, job: Job) -> None:
        seen.add(data, job)

    queues = [client.queue(f"crowd-{n}") for n in range(QUEUES)]
    for queue in queues:
        queue.handler(handle)
    await asyncio.gather(*(queue.dispatch(n) for n, queue in enumerate(queues)))
    with server.client() as admin:
        admin.config_resetstat()
        began = time.monotonic()
        async with working(client):
            while len(seen.jobs) < QUEUES:  # the test's timeout is the limit
                await asyncio.sleep(0.05)
        polls = (time.monotonic() - began) / SHORTEST_POLL  # few, unless the machine is busy
        calls = admin.info("commandstats")["cmdstat_fcall"]["calls"]
    assert sorted(seen.data) == list(range(QUEUES))
    assert calls <= (CALLS + polls) * QUEUES
