"""Sweeps are bounded, and the next call continues; nothing is lost whatever the order of calls."""

import random
from collections.abc import Callable
from typing import Any

from tests.interop.node.harness import NodeQueue

MAX_STALLED = 100
MAX_DEAD_CLIENTS = 20


def put_many(q: NodeQueue, count: int) -> None:
    with q.redis.pipeline(transaction=False) as pipeline:
        for number in range(count):
            pipeline.fcall("queasy_dispatch", 1, q.key, f"{number:04}", 0, "1")
        pipeline.execute()


def test_sweep_of_a_client_with_many_jobs_is_bounded_and_continues(q: NodeQueue) -> None:
    put_many(q, 250)
    assert len(q.ids("late", now=0, expiry=1, limit=250)) == 250
    for returned in (100, 200, 250):
        assert q.dequeue("d", now=1, limit=0) == []
        assert len(q.audit().scores) == returned
    assert len(q.ids("d", now=1, limit=1000)) == 250
    assert "late" not in q.keys()[":expiry"]


def test_sweep_of_many_clients_is_bounded_and_continues(q: NodeQueue) -> None:
    put_many(q, 50)
    for number in range(50):
        assert len(q.ids(f"late-{number}", now=0, expiry=1, limit=1)) == 1
    for returned in (20, 40, 50):
        q.bump("d", now=1)
        assert len(q.audit().scores) == returned


def test_client_that_is_swept_in_part_is_not_revived(q: NodeQueue) -> None:
    put_many(q, 150)
    q.ids("late", now=0, expiry=1, limit=150)
    q.bump("d", now=1)
    assert q.bump("late", now=1) == 0
    assert q.audit().held == {}
    assert q.bump("late", now=1) == 0


def test_client_that_is_swept_in_part_takes_no_jobs_before_the_rest_returned(q: NodeQueue) -> None:
    put_many(q, 350)
    q.ids("late", now=0, expiry=1, limit=350)
    q.bump("d", now=1)
    assert q.ids("late", now=1) == []
    assert q.ids("late", now=1) == []
    assert q.ids("late", now=1, limit=400) == sorted(q.audit().held["late"])
    assert len(q.audit().held["late"]) == 350


def test_holder_that_is_swept_in_part_can_finish_what_it_still_holds(q: NodeQueue) -> None:
    put_many(q, 150)
    ids = q.ids("late", now=0, expiry=1, limit=150)
    q.bump("d", now=1)
    assert sum(q.finish(id_, "late") for id_ in ids) == 50
    assert len(q.audit().scores) == 100


class Walk:
    """Random calls of several clients, and what must be true after each of them."""

    def __init__(self, q: NodeQueue, seed: int) -> None:
        self.q, self.random, self.now = q, random.Random(seed), 0
        self.holders: dict[str, str] = {}
        """The holder of each id, according to the replies."""
        self.present: set[str] = set()
        """Ids that must be waiting or active."""
        self.expires: dict[str, int] = {}

    def step(self) -> None:
        self.now += self.random.choice((0, 0, 1, 5))
        verbs: list[Callable[[], Any]] = [
            self.dispatch, self.dispatch, self.dequeue, self.dequeue, self.end, self.end, self.bump,
            self.cancel,
        ]  # fmt: skip
        self.random.choice(verbs)()
        found = self.q.audit()
        assert found.problems() == []
        assert found.scores.keys() | found.active_jobs == self.present
        held = {id_: client for client, ids in found.held.items() for id_ in ids}
        for id_, client in held.items():
            assert self.holders[id_] == client
        for id_, client in self.holders.items():  # a hold ends by its client, or by its expiry
            assert held.get(id_) == client or self.expires[client] <= self.now
        self.holders = held

    def id(self) -> str:
        return self.random.choice("abcdef")

    def client(self) -> str:
        return self.random.choice("xyz")

    def dispatch(self) -> None:
        id_, flag = self.id(), lambda: self.random.random() < 0.5
        update = self.random.choice((True, False, "ifLater", "ifEarlier"))
        run_at = self.random.choice((0, 0, self.now, self.now + 3))
        self.q.dispatch(id_, run_at, "1", flag(), update, flag())
        self.present.add(id_)

    def dequeue(self) -> None:
        client = self.client()
        self.expires[client] = expires = self.now + self.random.choice((0, 3, 20))
        for id_ in self.q.ids(client, self.now, expiry=expires, limit=2):
            holder = self.holders.get(id_)
            assert holder is None or self.expires[holder] <= self.now, "two at once"
            self.holders[id_] = client

    def bump(self) -> None:
        client = self.client()
        if self.q.bump(client, self.now, self.now + 5):
            self.expires[client] = self.now + 5

    def cancel(self) -> None:
        id_ = self.id()
        if self.q.cancel(id_) and id_ not in self.holders:
            self.present.discard(id_)

    def end(self) -> None:
        id_, client = self.id(), self.client()
        verb = self.random.choice(("finish", "retry", "fail"))
        blocked = (self.q.score(id_) or 0) < 0
        ended = getattr(self.q, verb)(id_, client)
        assert ended == (self.holders.get(id_) == client)
        if ended:
            del self.holders[id_]
            if verb != "retry" and not blocked:
                self.present.discard(id_)


def test_random_calls_lose_no_job_and_hand_none_out_twice(q: NodeQueue, seed: int) -> None:
    walk = Walk(q, seed)
    for _ in range(1500):
        walk.step()
