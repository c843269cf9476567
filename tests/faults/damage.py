"""A queue with a job in every state, damage to its keys, and what must hold afterwards."""

# ruff: noqa: E501, PT017 - tables of odd things; an error is one of two ways to be right

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import redis

from queasy import SyncClient
from queasy.errors import QueasyError
from queasy.job import JobError
from queasy.outcomes import Broken, Fail
from queasy.store.commands import ListState
from queasy.store.keys import NAMES, RESERVED
from queasy.store.records import Ending
from queasy.sync import SyncQueue
from tests.lowlevel import commands_of, run

USED = [name for name in NAMES if name not in RESERVED]
ZSETS = {
    "waiting", "waiters", "leases", "clients", "cancels", "failed_at", "broken_at", "callers",
}  # fmt: skip
GOOD = [f"good-{n}" for n in range(5)]
VICTIMS = ["waits", "later", "runs", "stopped", "gave-up", "odd"]
WORKER = "w1"
LONG = 3600
PATIENCE = 60  # leases; a queue of a dozen jobs that needs more is in an endless loop


def pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def map_of(**fields: object) -> bytes:
    return pack(fields)


NAN, INF = float("nan"), float("inf")
NUMBERS = [NAN, INF, -INF, -1, 0, 1.5, 1e300, -1e300, 2**63, 2**53, "1", "", None, True, [], {}]
NUMERALS = [
    b"nan", b"inf", b"-inf", b"-1", b"1e300", b"9" * 400, b"9" * 5000, b"0x10", b"", b" ", b"abc",
    b"\xff\xfe", b"1.5", b"-0", b"1e-400", b"99999999999999999999",
]  # fmt: skip
BYTES = [
    b"", b"\x00", b"\xff\xfe\xfd", b"\xc1", b"x" * 100_000, b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81", b"\x81\xa1a", b"\x91" * 5000,
    b"\x81\xa1a" * 3000, b"\x80", b"\x90", b"\x01", b"\xc0", b"\xc3", b"\xa3abc", b"{}", b"null",
    b"\xc7\x05\x01hello", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\x82\x80\x80\x90\x90",
]  # fmt: skip
INFOS = [
    *BYTES,
    *(map_of(**{name: value})
      for name in ("dispatched_at", "retry_count", "stall_count", "timeout_count", "companions",
                   "error", "origin", "options")
      for value in NUMBERS),
    *(map_of(options={"max_retries": value, "max_stalls": value, "min_backoff": value,
                      "max_backoff": value, "timeout": value}) for value in NUMBERS),
    map_of(origin={"token": "x", "id": 5}), map_of(error={"message": b"\xff"}),
    map_of(options={1: 2}), map_of(options=[1, 2]),
]  # fmt: skip
HELDS = [
    *BYTES,
    *(map_of(**{"accepted": 1.7e12, "run_at": 1.7e12, name: value}) + b"payload"
      for name in ("accepted", "run_at", "low", "high", "options", "update", "update_data", "reset")
      for value in NUMBERS),
    map_of(accepted=1.7e12) + b"x", map_of(run_at=1.7e12) + b"x",
    map_of(run_at=1.7e12, accepted=1.7e12, options={"max_retries": "x"}, update={"max_retries": 1}),
]  # fmt: skip
RECORDS = [
    *BYTES,
    *(map_of(**{name: value}) + b"payload"
      for name in ("failed_at", "broken_at", "token", "error", "options", "dispatched_at",
                   "retry_count", "origin")
      for value in NUMBERS),
]  # fmt: skip
ACTIVES = [
    *BYTES,
    *(token + b":1700000000000:w1" for token in NUMERALS),
    *(b"1:" + score + b":w1" for score in NUMERALS),
    b"1:1700000000000:nobody", b"1:1700000000000:", b"1:1:w1:cancel", b"1:1:w1:junk", b"::", b":::",
]  # fmt: skip
SCORES = ["inf", "-inf", "-1", "0", "1e300", "-1e300", "1.5", "1e-300"]
STATS = [*NUMERALS, b"28000000 5", b"28000000 " + b"9" * 400, b"9" * 400 + b" 5", b"1 1 1"]
REQUESTS = [*BYTES, b"swept", b"r 1 2", b"r " + b"9" * 400 + b" 1", b"r 2 1", b" 1 2"]
WORKERS = [
    *BYTES, b"[" * 100_000, b'{"pid":' + b"9" * 400 + b"}", b'{"started":1e308}', b'{"capacity":-5}',
    b'{"queues":{"a{b":1}}', b'{"queues":{"":1}}', b'{"queues":{"q":' + b"9" * 400 + b"}}",
    b'{"group":"\\ud800"}', b'{"queues":{"{q}-fail":-1}}', b'{"queues":{"{}-fail":1, "}-fail":1}}',
    b'{"host":"\\u0000\\n"}',
]  # fmt: skip
META = (
    "time", "token", "limits", "failed_limit", "broken_limit", "gap_from", "grace_until", "heard",
)  # fmt: skip
NOTHING = (0, b"-0", b"1e-400")  # a limit of 0: the record rightly keeps nothing
LIMITS = [
    *BYTES,
    *(map_of(max_retries=v, max_stalls=v, min_backoff=v, max_backoff=v)
      for v in NUMBERS if v not in NOTHING),
]  # fmt: skip


@dataclass
class Scene:
    """A queue with a job in every state, and another queue that no test damages."""

    redis: redis.Redis
    client: SyncClient
    prefix: str
    sent: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.queue: SyncQueue = self.client.queue("q", codec="raw")
        self.other = self.client.queue("other", codec="raw")

    def key(self, name: str) -> str:
        return f"{self.prefix}:{{q}}:{name}"

    def clear(self) -> None:
        keys = list(self.redis.scan_iter(f"{self.prefix}:*"))
        if keys:
            self.redis.delete(*keys)

    def set_up(self) -> None:
        self.clear()
        queue, commands = self.queue, commands_of(self.queue)
        run(queue, commands.register(WORKER, LONG, b"{}"))
        for id_ in ("gave-up", "odd", "runs", "stopped"):
            queue.dispatch(id_.encode(), id=id_)
        jobs = run(queue, commands.dequeue(WORKER, lease=LONG, limit=4, request="r1")).jobs
        leases = {job.id: job for job in jobs}
        run(queue, commands.settle([
            Ending("gave-up", leases["gave-up"].token, Fail()),
            Ending("odd", leases["odd"].token, Broken(JobError("Odd"))),
        ]))  # fmt: skip
        queue.dispatch(b"runs again", id="runs")
        queue.cancel("stopped", running=True)
        queue.dispatch(b"waits", id="waits")
        queue.dispatch(b"later", id="later", delay=LONG)
        for id_ in GOOD:
            queue.dispatch(id_.encode(), id=id_)
        self.other.dispatch(b"elsewhere", id="elsewhere")
        assert queue.audit() == []

    # What must hold

    def look(self) -> None:
        """Every call that only reads."""
        queue = self.queue
        for id_ in (*GOOD, *VICTIMS):
            repr(queue.get(id_))
        for state in get_args(ListState):
            for job in queue.jobs(state):
                repr((job, job.run_at, job.dispatched_at, job.ended_at, job.leased_at, job.origin))
        queue.counts()
        queue.stats()
        queue.clients()
        self.client.workers(["q"])

    def consume(self) -> dict[str, int]:
        """Leases and completes every job; returns how often each id came."""
        taken: dict[str, int] = {}
        for _ in range(PATIENCE):
            lease = self.queue.lease(LONG, timeout=0)
            if lease is None:
                return taken
            taken[lease.job.id] = taken.get(lease.job.id, 0) + 1
            lease.complete()
        raise AssertionError(f"the queue never ends: {taken}")

    def goes_on(self) -> dict[str, int]:
        """Each undamaged job is leased once, and every writing call works."""
        queue = self.queue
        self.look()
        taken = self.consume()
        assert {id_: taken.get(id_) for id_ in GOOD} == dict.fromkeys(GOOD, 1)
        queue.dispatch(b"new", id="new")
        queue.dispatch(b"new", id="new", delay=1)
        assert queue.cancel("new")
        queue.dispatch(b"new", id="new")
        lease = queue.lease(timeout=0)
        assert lease is not None
        assert lease.job.id == "new"
        assert lease.extend(60)
        assert lease.retry(after=0)
        lease = queue.lease(timeout=0)
        assert lease is not None
        assert lease.fail()
        assert queue.requeue("new") == 1
        assert self.consume() == {"new": 1}
        # The worker dies: its jobs come back, or are quarantined.
        self.redis.zadd(self.key("clients"), {WORKER: 1})
        for client in queue.clients():
            if client.id == WORKER:
                queue.sweep()
        for id_, count in self.consume().items():
            taken[id_] = taken.get(id_, 0) + count
        assert queue.sweep() == 0
        self.look()
        queue.audit()
        for kind in ("failed", "broken"):
            for id_ in (*VICTIMS, *GOOD):
                queue.requeue(id_, kind=kind)
        self.consume()
        for id_ in VICTIMS:
            try:
                queue.dispatch(b"again", id=id_)
            except QueasyError as error:
                assert "cannot be read" in str(error), error
            queue.cancel(id_)
        for kind in ("failed", "broken"):
            queue.drop(VICTIMS, kind=kind)
            queue.trim(0, kind=kind)
        assert self.other.get("elsewhere") is not None
        assert self.other.audit() == []
        return taken


@dataclass(frozen=True)
class Damage:
    """One change of a key, as if made by hand."""

    name: str
    do: Callable[[Scene], Any]
    says: str | None = None
    """What the audit must report; None if it may report anything."""


def hset(key: str, name: str | bytes, value: bytes, says: str | None = None) -> Damage:
    shown = value if len(value) < 40 else value[:30] + b"..."
    return Damage(
        f"{key}[{name!r}]={shown!r}", lambda s: s.redis.hset(s.key(key), name, value), says
    )


def zadd(key: str, member: str, score: str, says: str | None = None) -> Damage:
    def do(scene: Scene) -> None:
        scene.redis.execute_command("ZADD", scene.key(key), score, member)

    return Damage(f"{key}[{member!r}]={score}", do, says)


def hdel(key: str, name: str, says: str | None) -> Damage:
    return Damage(f"{key} without {name}", lambda s: s.redis.hdel(s.key(key), name), says)


def zrem(key: str, member: str, says: str | None) -> Damage:
    return Damage(f"{key} without {member}", lambda s: s.redis.zrem(s.key(key), member), says)


MISSING = [
    hdel("data", "waits", "waiting job waits has no payload"),
    hdel("data", "runs", "active job runs has no payload"),
    zrem("waiting", "waits", "data: "),
    hdel("active", "runs", "lease w1:runs belongs to a job that is not active"),
    zrem("leases", "w1:runs", "active: "),
    zrem("clients", "w1", "job runs is leased to w1, which is not a client"),
    zrem("cancels", "w1:stopped", "the cancel request of job stopped is not in both active and cancels"),
    hdel("failed", "gave-up", "gave-up is in failed_at but has no record"),
    zrem("failed_at", "gave-up", "failed: "),
    hdel("broken", "odd", "odd is in broken_at but has no record"),
    zrem("broken_at", "odd", "broken: "),
    *(Damage(f"no {name}", lambda s, name=name: s.redis.delete(s.key(name)), says)
      for name, says in [
          ("meta", None), ("stats", None), ("waiters", None), ("waiter_info", None),
          ("blocked", None), ("info", None),
          ("requests", None), ("workers", None), ("cancels", "not in both active and cancels"),
      ]),
]  # fmt: skip
EXTRA = [
    hset("data", "nobody", b"x", "data: "),
    hset("info", "nobody", map_of(retry_count=1), "info: "),
    hset("active", "nobody", b"1:1:w1", "active: "),
    hset("blocked", "waits", b"x", "which is not active"),
    hset("blocked", "nobody", b"x", "blocked: "),
    hset("requests", "nobody", b"r 1 2", "requests: "),
    hset("workers", "nobody", b"{}", "workers: "),
    hset("waiter_info", "nobody", map_of(hand=True), "waiter_info: "),
    hset("failed", "nobody", b"\x80x", "failed: "),
    hset("broken", "nobody", b"\x80x", "broken: "),
    zadd("waiting", "nobody", "1", "waiting job nobody has no payload"),
    zadd("leases", "w1:nobody", "0", "not active"),
    zadd("leases", "nobody:runs", "0", "runs"),
    zadd("leases", "no colon", "0", "no colon"),
    zadd("cancels", "w1:nobody", "0", "cancels: "),
    zadd("clients", "no:body", "1", None),
    zadd("clients", "w1:runs", "1", None),
    zadd("clients", "", "1", None),
    zadd("waiters", "no body", "1", None),
    zadd("waiters", "no body", "1.5", "not in whole milliseconds"),
    zadd("failed_at", "nobody", "1", "no record"),
    zadd("broken_at", "nobody", "1", "no record"),
    zadd("waiting", "runs", "1", "job runs is waiting and active"),
    zadd("waiting", "stopped", "1", "job stopped is waiting and active"),
    hset("meta", "colour", b"red", None),
]  # fmt: skip
GARBAGE = [
    *(hset("info", id_, value) for id_ in ("waits", "later", "runs") for value in INFOS),
    *(hset("active", "runs", value) for value in ACTIVES),
    *(hset("blocked", "runs", value) for value in HELDS),
    *(hset(kind, id_, value) for kind, id_ in (("failed", "gave-up"), ("broken", "odd"))
      for value in RECORDS),
    *(hset("stats", name, value) for name in ("total:dispatched", b"total:\xff", "count:failed", "00:failed", "x")
      for value in STATS),
    *(hset("meta", name, value) for name in META if name != "limits" for value in NUMERALS
      if not (name == "failed_limit" and value in NOTHING)),
    *(hset("meta", "limits", value) for value in LIMITS),
    *(hset("requests", WORKER, value) for value in REQUESTS),
    *(hset("workers", WORKER, value) for value in WORKERS),
    *(hset("waiter_info", WORKER, value)
      for value in (*BYTES, *(map_of(**{name: value}) for name in ("beside", "hand")
                              for value in NUMBERS))),
    *(zadd("waiting", id_, score) for id_ in ("waits", "later") for score in SCORES),
    *(zadd(key, member, score) for key, member in (
        ("leases", "w1:runs"), ("cancels", "w1:stopped"), ("clients", "w1"), ("waiters", "x"),
        ("failed_at", "gave-up"), ("broken_at", "odd")) for score in SCORES),
]  # fmt: skip
TYPES: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda r, key: r.set(key, b"junk"),
    "list": lambda r, key: r.rpush(key, b"junk"),
    "set": lambda r, key: r.sadd(key, b"junk"),
    "hash": lambda r, key: r.hset(key, "junk", b"junk"),
    "zset": lambda r, key: r.zadd(key, {"junk": 1}),
    "stream": lambda r, key: r.xadd(key, {"junk": "junk"}),
}


def wrong_types() -> Iterator[tuple[str, str]]:
    for name in USED:
        for kind in TYPES:
            if kind != ("zset" if name in ZSETS else "hash"):
                yield name, kind


def random_damage(rng: random.Random) -> Damage:
    """One of the damages above, or garbage in a random key."""
    if rng.random() < 0.6:
        return rng.choice([*MISSING, *EXTRA, *GARBAGE])
    name = rng.choice(USED)
    member = rng.choice([*VICTIMS, "w1", "w1:runs", "nobody", "nobody:runs", "~x", "~x:waits"])
    if name in ZSETS:
        return zadd(name, member, rng.choice([*SCORES, str(rng.uniform(0, 4e12))]))
    values = [*BYTES, *NUMERALS, rng.randbytes(rng.randrange(40)), *INFOS, *HELDS, *ACTIVES]
    return hset(name, member, rng.choice(values))
