"""Bad data in the keys: the audit names it, and the queue keeps working."""

import asyncio

# ruff: noqa: E501, PT017, PERF401 - tables of odd things; an error is one of two ways to be right
import itertools
import logging
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queasy import (
    Client,
    ProtocolError,
    SyncClient,
)
from tests.faults.damage import (
    EXTRA,
    GARBAGE,
    MISSING,
    TYPES,
    WORKER,
    Damage,
    Scene,
    random_damage,
    wrong_types,
)
from tests.lowlevel import commands_of, run
from tests.servers import Server
from tests.worker.inline import Seen, until, working

_numbers = itertools.count()


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    """A queue under a prefix of its own, because its damage would fail the audit of other tests."""
    prefix = f"bad{os.getpid()}-{next(_numbers)}"
    with (
        server.client(decode_responses=False) as connection,
        SyncClient(server.url, prefix=prefix, timeout=5) as client,
    ):
        made = Scene(connection, client, prefix)
        made.set_up()
        yield made
        made.clear()


def named(damage: Damage) -> str:
    return ascii(damage.name)


@pytest.mark.parametrize("damage", [*MISSING, *EXTRA], ids=named)
def test_missing_or_extra_entry_is_named_by_audit_and_stops_no_other_job(
    scene: Scene, damage: Damage
) -> None:
    damage.do(scene)
    if damage.says is not None:
        said = scene.queue.audit()
        assert any(damage.says in text for text in said), said
    scene.goes_on()


def go_on_after(scene: Scene, *damages: Damage) -> None:
    scene.set_up()
    for damage in damages:
        damage.do(scene)
    try:
        scene.queue.audit()
        scene.goes_on()
    except BaseException as error:
        error.add_note(f"after {' and '.join(damage.name for damage in damages)}")
        raise


def test_garbage_in_a_record_stops_no_other_job(scene: Scene) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    for damage in random.Random(seed).sample(GARBAGE, 30):
        go_on_after(scene, damage)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_every_kind_of_garbage_stops_no_other_job(scene: Scene) -> None:
    for damage in GARBAGE:
        go_on_after(scene, damage)


def combine(scene: Scene, seed: int, rounds: int) -> None:
    """Several damages at once: the damaged jobs may suffer, the queue must keep working."""
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(rounds):
        go_on_after(scene, *(random_damage(rng) for _ in range(rng.randint(2, 6))))


def test_combined_damage_stops_no_other_job(scene: Scene) -> None:
    combine(scene, random.randrange(2**32), 25)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_combined_damage_of_2000_rounds_stops_no_other_job(scene: Scene) -> None:
    combine(scene, random.randrange(2**32), 2000)


UNREADABLE = [
    ("info", "waits", b"\xc1", "the info of waiting job waits cannot be read"),
    ("info", "runs", b"\xc1", "the info of active job runs cannot be read"),
    ("active", "runs", b"junk", "the lease of job runs cannot be read"),
    ("active", "runs", b"1:nan:w1", "the lease of job runs cannot be read"),
    ("blocked", "runs", b"\x80", "the dispatch held for job runs cannot be read"),
    ("failed", "gave-up", b"\xc1", "the failed record of job gave-up cannot be read"),
    ("broken", "odd", b"\xc1", "the broken record of job odd cannot be read"),
    ("meta", "time", b"nan", "the setting time in meta cannot be read"),
    ("meta", "token", b"1e300", "the setting token in meta cannot be read"),
    ("meta", "limits", b"junk", "the setting limits in meta cannot be read"),
    ("meta", "grace_until", b"inf", "the setting grace_until in meta cannot be read"),
    ("meta", "heard", b"-1", "the setting heard in meta cannot be read"),
    ("meta", "back_at", b"junk", "the setting back_at in meta cannot be read"),
]


@pytest.mark.parametrize(("key", "name", "value", "says"), UNREADABLE)
def test_unreadable_record_is_named_by_audit(
    scene: Scene, key: str, name: str, value: bytes, says: str
) -> None:
    scene.redis.hset(scene.key(key), name, value)
    assert says in scene.queue.audit()


@pytest.mark.parametrize(
    ("key", "member", "says"),
    [("waiting", "waits", "run_at of job waits"), ("clients", "w1", "client w1 never expires"),
     ("leases", "w1:runs", "lease w1:runs has a score")],
)  # fmt: skip
def test_score_that_is_not_a_time_is_named_by_audit(
    scene: Scene, key: str, member: str, says: str
) -> None:
    scene.redis.execute_command("ZADD", scene.key(key), "inf", member)
    assert any(says in text for text in scene.queue.audit()), scene.queue.audit()


def test_job_both_waiting_and_active_is_not_leased_twice(scene: Scene) -> None:
    scene.redis.zadd(scene.key("waiting"), {"runs": 1})
    assert "runs" not in scene.consume()
    job = scene.queue.get("runs")
    assert job is not None
    assert (job.state, job.client) == ("active", WORKER)
    assert {job.id for job in scene.queue.jobs("broken")} == {"odd", "runs"}


def test_leases_of_an_unknown_client_can_be_evicted(scene: Scene) -> None:
    scene.redis.zrem(scene.key("clients"), WORKER)
    assert scene.queue.evict(WORKER) == 2
    scene.redis.hdel(scene.key("requests"), WORKER)
    scene.redis.hdel(scene.key("workers"), WORKER)
    assert scene.queue.audit() == []


def test_client_id_with_a_colon_does_not_take_the_leases_of_another(
    scene: Scene,
) -> None:
    """The lease of job `runs:x` and client `w1` has the same name as that of job `x` and client
    `w1:runs`: `w1:runs:x`."""
    scene.queue.dispatch(b"", id="runs:x")
    scene.redis.zadd(scene.key("waiting"), {"runs:x": 1})
    take = commands_of(scene.queue).dequeue(WORKER, lease=3600, limit=1)
    (job,) = run(scene.queue, take).jobs
    assert job.id == "runs:x"
    scene.redis.zadd(scene.key("clients"), {"w1:runs": 1})
    scene.queue.sweep()
    assert scene.queue.audit() == []


# A key of the wrong type

VERBS: list[Any] = [
    lambda queue: queue.dispatch(b"", id="new"),
    lambda queue: queue.dispatch(b"", id="waits", delay=5),
    lambda queue: queue.dispatch(b"", id="runs"),
    lambda queue: queue.cancel("waits", running=True),
    lambda queue: queue.lease(timeout=0),
    lambda queue: queue.get("waits"),
    *(lambda queue, state=state: list(queue.jobs(state)) for state in ("waiting", "active", "failed", "broken")),
    lambda queue: queue.counts(),
    lambda queue: queue.stats(),
    lambda queue: queue.clients(),
    lambda queue: queue.pause(),
    lambda queue: queue.requeue("gave-up"),
    lambda queue: queue.requeue("odd", kind="broken"),
    lambda queue: queue.drop("gave-up"),
    lambda queue: queue.trim(5),
    lambda queue: queue.sweep(),
    lambda queue: queue.evict(WORKER),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), list(wrong_types()))
def test_key_of_the_wrong_type_is_named_and_other_queues_work(
    scene: Scene, name: str, wrong: str
) -> None:
    key = scene.key(name)
    scene.redis.delete(key)
    TYPES[wrong](scene.redis, key)
    assert any(f"key {name} is a {wrong}" in text for text in scene.queue.audit())
    for verb in VERBS:
        try:
            verb(scene.queue)
        except ProtocolError as error:
            assert f"key {key} is a {wrong}, expected a " in str(error), error
            assert "rename or delete it" in str(error)
    assert scene.redis.type(key).decode() == wrong, "no call overwrites it"
    lease = scene.other.lease(timeout=0)
    assert lease is not None
    assert lease.complete()
    scene.redis.delete(key)
    scene.queue.resume()
    scene.queue.dispatch(b"", id="after")
    assert "after" in scene.consume()


def calls(scene: Scene) -> int:
    stats = scene.redis.info("commandstats")
    return int(stats["cmdstat_fcall"]["calls"])


@pytest.mark.parametrize("name", ["meta", "clients"])
async def test_worker_backs_off_from_a_damaged_queue_and_serves_the_others(
    server: Server, scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queasy")
    seen, healthy = Seen(), Seen()
    async with Client(server.url, prefix=scene.prefix, timeout=5) as client:
        spoilt, other = client.queue("q", codec="raw"), client.queue("fine", codec="raw")
        spoilt.handler(seen.add)
        other.handler(healthy.add)
        async with working(client):
            await seen.runs(6)  # "waits" and the good ones
            key = scene.key(name)
            scene.redis.delete(key)
            scene.redis.set(key, b"junk")
            with pytest.raises(ProtocolError, match=f"{name} is a string"):
                await spoilt.lease(timeout=0)
            before, since = calls(scene), time.monotonic()
            for n in range(10):
                await other.dispatch(b"", id=f"job-{n}")
                await healthy.runs(n + 1)
                await asyncio.sleep(0.05)
            seconds = time.monotonic() - since
            # For each job a dispatch and one or two polls; besides, a few attempts a second.
            assert calls(scene) - before < 10 * 5 + 10 * (seconds + 1)
            scene.redis.delete(key)
            ran = len(seen.jobs)

            async def comes_through() -> bool:
                await spoilt.dispatch(b"", id="after")
                return len(seen.jobs) > ran

            await until(comes_through, "the queue is served again")
    assert sum("queue_unusable" in text for text in caplog.messages) <= 2
    assert "in a worker" not in caplog.text


async def test_worker_starts_although_one_of_its_queues_is_damaged(
    server: Server, scene: Scene
) -> None:
    scene.clear()
    scene.redis.set(scene.key("meta"), b"junk")
    seen, healthy = Seen(), Seen()
    async with Client(server.url, prefix=scene.prefix, timeout=5) as client:
        spoilt, other = client.queue("q", codec="raw"), client.queue("fine", codec="raw")
        spoilt.handler(seen.add)
        other.handler(healthy.add)
        async with working(client):
            await other.dispatch(b"")
            await healthy.runs(1)
            scene.redis.delete(scene.key("meta"))
            await spoilt.dispatch(b"")
            await seen.runs(1)


MESSAGES = [
    b"", b"cancel", b"cancel:", b"cancel:x:y", b"cancel:" + b"9" * 5000 + b":x", b"\xff\xfe", b"wake:up",
    b"cancel:\xff:\xff", b"cancel:-1:a", b"nonsense", b"w" * 100_000, b"job", b"job:", b"job:1:2:3",
    b"job:1:2:3:0:", b"job:1:2:x:0:abc", b"job:1:2:-1:3:abc", b"job:1:2:1:-1:abc", b"job:1:2:0:0:abc",
    b"job:1:2:1:9:abc", b"job:x:2:1:0:abc", b"job:0:2:1:0:abc", b"job:1:x:1:0:abc", b"job:\xff:2:1:0:a",
    b"job:%d:2:1:0:abc" % 2**64, b"poll:", b"poll:x", b"poll:" + b"9" * 400,
]  # fmt: skip
ORDERS = [
    b"", b"{", b"null", b"\xff", b'{"do":"serve","queue":5}', b'{"do":"explode","queue":"fine"}',
    b'{"do":"serve","queue":"nobody"}', b'{"do":"unserve","queue":"\\ud800"}', b"[" * 50_000,
]  # fmt: skip


def listening(scene: Scene) -> set[str]:
    """The ids of connections that are subscribed."""
    return {one["id"] for one in scene.redis.client_list() if int(one["ssub"])}


async def test_invalid_messages_do_not_end_a_workers_subscription(
    server: Server, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = Seen()
    async with Client(server.url, prefix=scene.prefix, timeout=5) as client:
        queue = client.queue("fine", codec="raw")
        queue.handler(healthy.add)
        async with working(client):
            await queue.dispatch(b"", id="first")
            await healthy.runs(1)

            async def sleeps() -> bool:
                return (await queue.counts()).waiters == 1

            await until(sleeps, "the worker waits for a wake-up")
            (worker,) = await queue.clients()
            (info,) = await client.workers()
            before = listening(scene)
            base = f"{scene.prefix}:{{fine}}:"
            heard = [
                scene.redis.execute_command("SPUBLISH", f"{base}client:{worker.id}", text)
                for text in MESSAGES
            ]
            for text in ORDERS:
                for channel in (
                    f"{base}control",
                    f"{scene.prefix}:{{worker-{info.group}}}:control",
                ):
                    heard.append(scene.redis.execute_command("SPUBLISH", channel, text))
            assert set(heard) == {1}
            for n in range(5):
                await queue.dispatch(b"", id=f"then-{n}")
                await healthy.runs(n + 2)
            assert [job.id for job in healthy.jobs] == ["first", *(f"then-{n}" for n in range(5))]
            assert listening(scene) == before, "no connection was lost and reopened"
    assert "never retrieved" not in caplog.text


async def test_foreign_record_that_cannot_be_read_is_quarantined(
    client: Client, server: Server, prefix: str
) -> None:
    queue = client.queue("q")
    await queue.dispatch("strange", id="strange")
    await queue.dispatch("good", id="good")
    # A map that Lua can read: {"error": {"type": <invalid UTF-8>}}
    server.client().hset(
        f"{prefix}:{{q}}:info", "strange", b"\x81\xa5error\x81\xa4type\xa2\xff\xfe"
    )
    job = await queue.get("strange")
    assert job is not None
    assert not job.readable
    lease = await queue.lease(timeout=0)
    assert lease is not None
    assert lease.data == "good"
    await lease.complete()
    broken = await queue.get("strange")
    assert broken is not None
    assert (broken.state, broken.data) == ("broken", "strange")


async def test_ids_that_are_not_utf8_pass_through_unchanged(
    client: Client, server: Server, prefix: str
) -> None:
    queue = client.queue("q", codec="raw")
    keys = queue.keys.for_dispatch
    server.client().fcall(
        "queasy_v1_dispatch", len(keys), *keys, "", "", b"no \xff utf-8", b"x", "", "", ""
    )
    lease = await queue.lease(timeout=0)
    assert lease is not None
    assert lease.job.id.encode("utf-8", "surrogateescape") == b"no \xff utf-8"
    assert await lease.complete()
