"""The roles of a peer, with the package redis-work-queue. It runs in an environment of its own."""

import json
import sys
import time

from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

LEASE_SECONDS = 1


def add(db: Redis, queue: WorkQueue, name: str, count: int) -> None:
    for number in range(count):
        queue.add_item(db, Item(f"data of {name}-{number}", f"{name}-{number}"))


def work(db: Redis, queue: WorkQueue, prefix: str, name: str) -> None:
    while True:
        item = queue.lease(db, LEASE_SECONDS, True, 1)
        if item is None:
            continue
        if not item.data():  # it was completed before: this package gives it out all the same
            queue.complete(db, item)
            continue
        db.hset(f"{prefix}-holding", name, item.id())
        time.sleep(0.005)
        db.sadd(f"{prefix}-done", item.id())
        if queue.complete(db, item):
            db.hincrby(f"{prefix}-completed", item.id(), 1)
        db.hdel(f"{prefix}-holding", name)


def hold(db: Redis, queue: WorkQueue) -> None:
    item = queue.lease(db, LEASE_SECONDS)
    print(item.id(), flush=True)
    time.sleep(3600)


def show(db: Redis, queue: WorkQueue) -> None:
    item = queue.lease(db, 60, True, 20)
    done = [queue.complete(db, item), queue.complete(db, item)]
    print(json.dumps({"id": item.id(), "data": item.data().hex(), "done": done}))


def main(socket: str, prefix: str, role: str, name: str, count: str = "0") -> None:
    db = Redis(unix_socket_path=socket)
    queue = WorkQueue(KeyPrefix(prefix))
    match role:
        case "add":
            add(db, queue, name, int(count))
        case "work":
            work(db, queue, prefix, name)
        case "hold":
            hold(db, queue)
        case "show":
            show(db, queue)
        case "clean":
            while True:
                queue.light_clean(db)
                time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
