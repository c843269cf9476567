"""The roles of a peer, with this package: what it completes and cleans, the others see."""

import asyncio
import itertools
import json
import sys
from typing import Any

from queasy import Client
from queasy.interop import workqueue

LEASE_SECONDS = 1


async def work(db: Any, queue: workqueue.Queue[Client], prefix: str, name: str) -> None:
    while True:
        item = await queue.lease(LEASE_SECONDS, timeout=1)
        if item is None:
            continue
        db.hset(f"{prefix}-holding", name, item.id)
        await asyncio.sleep(0.005)
        db.sadd(f"{prefix}-done", item.id)
        if await queue.complete(item):
            db.hincrby(f"{prefix}-completed", item.id, 1)
        db.hdel(f"{prefix}-holding", name)


async def clean(queue: workqueue.Queue[Client]) -> None:
    for turn in itertools.count():
        await (queue.deep_clean if turn % 5 == 0 else queue.light_clean)(settle=0.05)
        await asyncio.sleep(0.05)


async def main(socket: str, prefix: str, role: str, name: str, count: str = "0") -> None:
    from redis import Redis

    db = Redis(unix_socket_path=socket)
    async with Client(f"unix://{socket}") as client:
        queue = workqueue.Queue(client, prefix, layout="published")
        match role:
            case "add":
                for number in range(int(count)):
                    data = f"data of {name}-{number}"
                    await queue.add_item(workqueue.Item(data, id=f"{name}-{number}"))
            case "work":
                await work(db, queue, prefix, name)
            case "hold":
                item = await queue.lease(LEASE_SECONDS)
                assert item is not None
                print(item.id, flush=True)
                await asyncio.sleep(3600)
            case "show":
                item = await queue.lease(60, timeout=20)
                assert item is not None
                done = [await queue.complete(item), await queue.complete(item)]
                print(json.dumps({"id": item.id, "data": item.data.hex(), "done": done}))
            case "clean":
                await clean(queue)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
