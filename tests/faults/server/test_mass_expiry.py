"""Very many leases that expire together return in small steps, without delaying other calls."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest
import redis

from queasy import SyncClient
from queasy.options import JobOptions
from queasy.store.records import DispatchItem
from tests.servers import Server, ServerKind, start_server
from tests.store.harness import Harness, load

T = TypeVar("T")

LEASES = 20_000
MOST_LEASES = 100  # ended by one call
MEGABYTE = bytes(2**20)
LONGEST_CALL = 0.050


@pytest.fixture(scope="module")
def own_server(kind: ServerKind) -> Iterator[Server]:
    with start_server(kind, appendonly=True) as running:
        yield running


@pytest.fixture
def connection(own_server: Server) -> Iterator[redis.Redis]:
    with own_server.client(decode_responses=False, socket_timeout=60) as client:
        load(client)
        yield client


@pytest.fixture
def h(connection: redis.Redis) -> Iterator[Harness]:
    harness = Harness(connection)
    yield harness
    harness.audit()
    harness.clear()


class Stopwatch:
    """The CPU time of the server's main thread in each call, which does not depend on how busy the
    machine is. No other client may use the server meanwhile.
    """

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self.longest: dict[str, float] = {}

    def _spent(self) -> float:
        spent = self._connection.info("cpu")
        return spent["used_cpu_user_main_thread"] + spent["used_cpu_sys_main_thread"]

    def __call__(self, name: str, call: Callable[[], T]) -> T:
        before = self._spent()
        answer = call()
        self.longest[name] = max(self.longest.get(name, 0.0), self._spent() - before)
        return answer


def unwatched(_name: str, call: Callable[[], T]) -> T:
    return call()


Watch = Callable[[str, Callable[[], T]], T]


def lease_all(h: Harness, clients: int) -> list[str]:
    """Leases 20,000 jobs to `clients`; returns the ids in the order of acceptance."""
    ids = [f"j{n:05}" for n in range(LEASES)]
    payload = bytes(100)
    for first in range(0, LEASES, 1000):
        items = [DispatchItem(id_, payload) for id_ in ids[first : first + 1000]]
        h.call(h.commands.dispatch(items))
    each = LEASES // clients
    for number in range(clients):
        client = f"c{number:03}"
        h.join(client, lease=20)
        for batch in range(0, each, 1000):
            taken = h.take(client, lease=20, limit=min(each, 1000), request=f"r{batch}")
            assert len(taken) == min(each, 1000)
    return ids


def stalled(h: Harness) -> int:
    counted = {stat.kind: stat.count for stat in h.call(h.commands.stats()) if stat.minute is None}
    return counted.get("stalled", 0)


def outlive(h: Harness) -> None:
    """Lets every lease expire; calls meanwhile show that this is not an outage."""
    h.join("alive", lease=600)
    for _ in range(24):
        h.later(1)
        h.dispatch("heard", after=3600)


def recover(h: Harness, watch: Watch) -> None:
    """All leases return, a bounded number with each call, whatever the call is."""
    number, before = 0, 0
    while before < LEASES:
        number += 1
        match number % 4:
            case 0:
                h.later(0.001)
                assert watch("dispatch", lambda: h.dispatch("new")) in ("created", "updated")
            case 1:
                watch("sweep", h.sweep)
            case 2:
                watch("bump", lambda: h.bump("alive", lease=600))
            case _:
                taken = watch("dequeue", lambda: h.take("alive", lease=600, limit=10))
                assert len(taken) == 10, "returned jobs are leased while others return"
        after = stalled(h)
        assert after - before <= MOST_LEASES
        before = after
    assert number <= LEASES / MOST_LEASES * 4 / 3 + 4, "each call that sweeps ended a hundred"
    assert h.sweep() == 0


@pytest.mark.parametrize("clients", [200, 1])
def test_twenty_thousand_expired_leases_return_a_hundred_at_a_time(
    h: Harness, clients: int
) -> None:
    ids = lease_all(h, clients)
    outlive(h)
    recover(h, unwatched)
    counts = h.call(h.commands.counts())
    assert counts.waiting + counts.active == LEASES + 2  # with "heard" and "new"
    taken = {job.id for job in h.call(h.commands.jobs("active", b"", 1000))[0]}
    left = h.take("alive", limit=1000, lease=600)
    assert [job.id for job in left] == [id_ for id_ in ids if id_ not in taken][:1000]
    assert all(job.stall_count == 1 for job in left)


def give_up_large(h: Harness, jobs: int, watch: Watch) -> None:
    """Jobs of a megabyte fail, since their lease expires and max_stalls is 1."""
    h.call(
        h.commands.configure(limits=JobOptions(max_stalls=1), fail_handler=True, failed_limit=jobs)
    )
    h.join("c1", lease=20)
    h.join("alive", lease=600)
    for n in range(jobs):
        h.dispatch(f"j{n}", MEGABYTE)
    held, batch = 0, [None]
    while batch:
        batch = watch("dequeue", lambda: h.take("c1", lease=20, limit=1000))
        assert len(batch) <= 5, "a dequeue ends with the five it reads at once"
        held += len(batch)
    assert held == jobs
    outlive(h)
    ended = 0
    while some := watch("sweep", h.sweep):
        assert some <= 2, "a sweep ends when it has handled two megabytes"
        ended += some
        h.later(0.001)
        assert watch("dispatch", lambda: h.dispatch("new")) in ("created", "updated")
    assert ended == jobs
    ids = [f"j{n}" for n in range(jobs)]
    while ids:
        requeue = h.commands.requeue("failed", ids)
        words = watch("requeue", partial(h.call, requeue))
        assert words.count("requeued") == min(2, len(ids))
        ids = [id_ for id_, word in zip(ids, words, strict=True) if word == "later"]
    assert h.records() == []


def test_large_jobs_fail_two_at_a_time(h: Harness) -> None:
    give_up_large(h, 20, unwatched)


def test_requeue_of_large_jobs_requeues_all(own_server: Server, connection: redis.Redis) -> None:
    with SyncClient(own_server.url, prefix="large") as client:
        queue = client.queue("q", codec="raw")
        for n in range(7):
            queue.dispatch(MEGABYTE, id=f"j{n}")
            with queue.lease(seconds=30) as lease:
                lease.fail("no")
        assert queue.requeue(f"j{n}" for n in range(7)) == 7
        assert queue.counts().waiting == 7
        assert queue.audit() == []


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("clients", [200, 1])
def test_no_call_of_a_mass_stall_takes_more_than_fifty_milliseconds(
    h: Harness, connection: redis.Redis, clients: int
) -> None:
    lease_all(h, clients)
    watch = Stopwatch(connection)
    if clients == 1:  # as if its last answer was lost
        again = watch(
            "repeated dequeue",
            lambda: h.take("c000", lease=20, limit=1000, request=f"r{LEASES - 1000}"),
        )
        assert len(again) == 1000
    outlive(h)
    recover(h, watch)
    assert_short(watch)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_no_call_takes_more_than_fifty_milliseconds_when_large_jobs_fail(
    h: Harness, connection: redis.Redis
) -> None:
    watch = Stopwatch(connection)
    give_up_large(h, 200, watch)
    assert_short(watch)


def assert_short(watch: Stopwatch) -> None:
    longest = {name: f"{spent * 1000:.1f} ms" for name, spent in watch.longest.items()}
    print(f"the longest call of each kind: {longest}")
    assert max(watch.longest.values()) < LONGEST_CALL, longest
