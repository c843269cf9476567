"""One work queue, shared with the published packages for Python and Node."""

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from queasy import SyncClient
from queasy.interop import workqueue
from tests.interop.packages import PACKAGES, Peer, ours, peer
from tests.servers import Server, wait_until

ITEMS_OF_EACH = 100
KILLS_OF_EACH = 4
BACKLOG = 20


@pytest.fixture
def published(server: Server, name: str) -> Iterator[workqueue.Queue[SyncClient]]:
    with SyncClient(server.url) as client:
        yield workqueue.Queue(client, name, layout="published")


def socket_of(server: Server) -> str:
    return server.admin_url.removeprefix("unix://")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("data", [b"text", bytes(range(256)), b"\x00"], ids=["text", "all", "nul"])
def test_item_of_ours_reaches_the_package_with_the_same_bytes(
    server: Server, name: str, published: workqueue.Queue[SyncClient], package: str, data: bytes
) -> None:
    other = peer(package)
    item = workqueue.Item(data)
    assert published.add_item(item)
    shown = json.loads(other.run(socket_of(server), name, "show", "worker"))
    assert shown == {"id": item.id, "data": data.hex(), "done": [True, False]}
    assert published.counts() == (0, 0)
    assert not published.complete(item)


@pytest.mark.parametrize("package", PACKAGES)
def test_items_of_the_package_are_leased_in_order_and_completed(
    server: Server, name: str, published: workqueue.Queue[SyncClient], package: str
) -> None:
    peer(package).run(socket_of(server), name, "add", "theirs", "3")
    assert published.counts() == (3, 0)
    for number in range(3):
        item = published.lease(30, timeout=10)
        assert item == workqueue.Item(f"data of theirs-{number}", f"theirs-{number}")
        assert published.complete(item)
        assert not published.complete(item)
    with server.client() as admin:
        assert admin.keys(f"{name}:*") == []


@pytest.mark.parametrize("package", PACKAGES)
def test_item_of_a_killed_worker_of_the_package_is_returned_by_our_clean(
    server: Server, name: str, published: workqueue.Queue[SyncClient], package: str
) -> None:
    published.add_item(workqueue.Item("work", id="a"))
    with peer(package).start(socket_of(server), name, "hold", "dies") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "a"
        assert published.lease(30, block=False) is None
        holder.kill()
    wait_until(lambda: published.light_clean(settle=0) == 1, "the lease is over")
    item = published.lease(30, timeout=10)
    assert item is not None
    assert published.complete(item)


@pytest.mark.parametrize("package", PACKAGES)
def test_held_item_of_ours_is_left_alone_by_the_cleaner_of_the_package(
    server: Server, name: str, published: workqueue.Queue[SyncClient], package: str
) -> None:
    for id_ in ("held", "abandoned"):
        published.add_item(workqueue.Item("work", id=id_))
    held = published.lease(60, timeout=10)
    published.lease(0.001, timeout=10)
    with peer(package).start(socket_of(server), name, "clean", "cleaner") as cleaner:
        # The cleaner for Node also adds an id "0", which has no data.
        returned = published.lease(60, timeout=30)
        cleaner.kill()
    assert returned is not None
    assert returned.id == "abandoned"
    assert held is not None
    assert published.complete(held)
    assert published.complete(returned)


class Fleet:
    """Workers and cleaners of all kinds on one queue. They are killed with SIGKILL."""

    def __init__(self, stack: ExitStack, kinds: dict[str, Peer], socket: str, prefix: str) -> None:
        self._kinds, self._where = kinds, (socket, prefix)
        self._running: dict[str, tuple[str, str, subprocess.Popen[str]]] = {}
        self._started = 0
        stack.callback(self.kill_all)

    def start(self, kind: str, role: str) -> str:
        self._started += 1
        name = f"{kind}-{role}-{self._started}"
        process = self._kinds[kind].start(*self._where, role, name)
        self._running[name] = (kind, role, process)
        return name

    def kill(self, name: str) -> None:
        _, _, process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def replace(self, name: str) -> None:
        """Kills a process and starts another of its kind."""
        kind, role, _ = self._running[name]
        self.kill(name)
        self.start(kind, role)

    def of(self, kind: str, role: str) -> list[str]:
        return [name for name, (k, r, _) in self._running.items() if (k, r) == (kind, role)]

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)


def holder_in(admin: Any, prefix: str, names: list[str]) -> str | None:
    """A worker of these that holds an item now."""
    held = admin.hkeys(f"{prefix}-holding")
    return next((name for name in names if name in held), None)


def test_mixed_fleet_with_killed_workers_and_cleaners_loses_nothing(
    server: Server, name: str, published: workqueue.Queue[SyncClient], seed: int
) -> None:
    rng = random.Random(seed)
    kinds = {"ours": ours(), **{package: peer(package) for package in PACKAGES}}
    socket = socket_of(server)
    added = {f"{kind}-{n}" for kind in kinds for n in range(ITEMS_OF_EACH)}
    with ExitStack() as stack, server.client() as admin:
        fleet = Fleet(stack, kinds, socket, name)
        for kind in kinds:
            for _ in range(2):
                fleet.start(kind, "work")
            fleet.start(kind, "clean")
        adding = [
            stack.enter_context(one.start(socket, name, "add", kind, str(ITEMS_OF_EACH)))
            for kind, one in kinds.items()
        ]
        for kind in rng.sample([*kinds] * KILLS_OF_EACH, len(kinds) * KILLS_OF_EACH):
            kill_a_holder(admin, fleet, kind, name, published, added)
            if rng.random() < 0.5:
                fleet.replace(rng.choice(fleet.of(kind, "clean")))
        assert [process.wait(60) for process in adding] == [0] * len(adding)
        wait_until(
            lambda: published.counts() == (0, 0) and admin.smembers(f"{name}-done") >= added,
            "all is done",
            60,
        )
        done, completed = admin.smembers(f"{name}-done"), admin.hgetall(f"{name}-completed")
        assert added - done == set(), "lost"
        assert done <= added
        assert {id_: n for id_, n in completed.items() if int(n) > 1} == {}


def kill_a_holder(
    admin: Any,
    fleet: Fleet,
    kind: str,
    prefix: str,
    queue: workqueue.Queue[SyncClient],
    added: set[str],
) -> None:
    """Kills a worker of this kind while it holds an item."""
    victim: list[str] = []

    def found() -> bool:
        # A backlog: waiting workers of the packages get a single item before those of ours.
        while queue.queue_len() < BACKLOG:
            extra = workqueue.Item("to be held", id=f"extra-{len(added)}")
            added.add(extra.id)
            queue.add_item(extra)
        victim[:] = filter(None, [holder_in(admin, prefix, fleet.of(kind, "work"))])
        return bool(victim)

    wait_until(found, f"a worker of {kind} holds an item")
    fleet.replace(victim[0])
