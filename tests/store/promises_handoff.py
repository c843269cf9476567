"""Promises about hand-offs: the message that wakes a worker carries a job."""

from queasy.outcomes import Finish
from queasy.store.records import DispatchItem
from tests.store.harness import Harness
from tests.store.promise import promise

BIG = 65537


class Taker:
    """A client that waits, takes hand-offs, and is subscribed."""

    def __init__(
        self, h: Harness, name: str = "c1", *, hears: bool = True, lease: float = 5
    ) -> None:
        self.h, self.name = h, name
        self._ears = h.redis.pubsub()
        if hears:
            self._ears.ssubscribe(h.keys.channel(name))
            assert self._message() == 1  # it is subscribed
        h.join(name, lease=5)
        self.sleep()

    def sleep(self, *, beside: int = 0, seconds: float = 3) -> None:
        taken = self.h.dequeue(
            self.name,
            lease=5,
            waiter=self.name,
            waits=seconds,
            accepts_hand_off=True,
            beside=beside,
        )
        assert taken.jobs == []

    def _message(self) -> object:
        said = self._ears.get_sharded_message(timeout=1 if self._ears.subscribed else 0)
        return said and said["data"]

    def heard(self) -> bytes:
        """The next message; b'' if there is none."""
        said = self._message()
        return said if isinstance(said, bytes) else b""


@promise
def a_waiter_receives_the_job_and_holds_its_lease(h: Harness) -> None:
    taker = Taker(h)
    assert h.dispatch("a:b:1", b"\xff:1:") == "created"
    job = h.commands.handed(taker.heard(), "c1")
    assert (job.id, job.payload, job.client, job.state) == ("a:b:1", b"\xff:1:", "c1", "active")
    held = h.row("active", "a:b:1")
    assert (held.token, held.client, held.run_at_epoch) == (job.token, "c1", job.run_at_epoch)
    assert h.call(h.commands.counts()).waiters == 0, "it is not a waiter any more"
    assert h.end(job, Finish()) == "finished"
    assert h.left() == {":clients"}


@promise
def a_hand_off_does_not_shorten_the_lease_of_the_client(h: Harness) -> None:
    """A waiter sends no heartbeats, so its lease must last as long as before."""
    taker = Taker(h)
    h.later(2.9)
    h.dispatch("a")
    job = h.commands.handed(taker.heard(), "c1")
    h.later_with_calls(3 + 5 - 2.9 - 0.1)
    assert h.end(job, Finish()) == "finished"


@promise
def a_hand_off_that_no_client_receives_leaves_the_job_waiting(h: Harness) -> None:
    Taker(h, hears=False)
    h.dispatch("a")
    assert h.rows("a").keys() == {"due"}
    (job,) = h.take(limit=9)
    assert (job.id, job.stall_count, job.retry_count) == ("a", 0, 0)


@promise
def a_hand_off_that_two_connections_receive_stays_leased(h: Harness) -> None:
    """One connection is dead and the server has not noticed, or another client subscribes too."""
    taker, other = Taker(h), h.redis.pubsub()
    other.ssubscribe(h.keys.channel("c1"))
    assert other.get_sharded_message(timeout=1)
    h.dispatch("a")
    job = h.commands.handed(taker.heard(), "c1")
    assert h.end(job, Finish()) == "finished"
    taker.sleep()
    h.dispatch_many("b", "c")
    assert taker.heard() == b"wake"


@promise
def an_unsubscribed_waiter_does_not_keep_a_job_from_another(h: Harness) -> None:
    Taker(h, "c1", hears=False)
    h.later(0.01)
    second = Taker(h, "c2")
    h.dispatch("a")
    assert second.heard() == b"wake"
    assert h.rows("a").keys() == {"due"}


@promise
def another_waiter_polls_in_time_after_a_hand_off(h: Harness) -> None:
    """The client may be busy with the job, and the next due job would wait for another poll."""
    takers = []
    for number in range(3):  # on one host: two of them keep the time
        takers.append(Taker(h, f"h0000000a-c{number}"))
        h.later(0.01)
    h.dispatch("later", after=1)
    assert [taker.heard() for taker in takers] == [b"poll:1000", b"poll:1000", b""]
    h.dispatch("a")
    assert takers[0].heard().startswith(b"job:")
    assert takers[2].heard() == b"poll:1000"


@promise
def a_paused_queue_makes_no_hand_offs(h: Harness) -> None:
    taker = Taker(h)
    h.call(h.commands.configure(paused=True))
    h.dispatch("a")
    assert not taker.heard().startswith(b"job")
    assert h.rows("a").keys() == {"due"}


@promise
def a_dead_client_gets_no_hand_off(h: Harness) -> None:
    taker = Taker(h)
    h.later(2 * 3 + 5 + 0.1)
    h.dispatch("a")
    assert not taker.heard().startswith(b"job")
    assert h.rows("a").keys() == {"due"}


@promise
def a_client_with_a_long_lease_is_woken_instead(h: Harness) -> None:
    """If its host is gone, the job would stay leased until the lease expires."""
    taker = Taker(h)
    taker.sleep(seconds=20)
    h.dispatch("a")
    assert taker.heard() == b"wake"
    assert h.take(limit=9)
    taker.sleep(seconds=20)
    h.later(4)  # now 21 seconds are left
    h.dispatch("b")
    assert taker.heard().startswith(b"job:")


@promise
def a_hand_off_waiter_that_sleeps_until_a_lease_expires_is_not_woken_early(h: Harness) -> None:
    h.dispatch("a")
    h.later(0.000_2)  # a lease may expire within a millisecond
    h.take_one(lease=5)
    h.later(0.999_9)
    taker = Taker(h)
    taker.sleep(seconds=8)
    assert taker.heard() == b""


@promise
def a_waiter_that_does_not_take_hand_offs_is_woken(h: Harness) -> None:
    taker = Taker(h)
    h.dequeue("c1", lease=5, waiter="c1", waits=3)
    h.dispatch("a")
    assert taker.heard() == b"wake"
    assert h.rows("a").keys() == {"due"}


@promise
def large_jobs_and_several_jobs_are_not_handed_off(h: Harness) -> None:
    taker = Taker(h)
    h.dispatch("big", bytes(BIG))
    assert taker.heard() == b"wake"
    (big,) = h.take(limit=9)
    assert (big.id, len(big.payload)) == ("big", BIG)
    taker.sleep()
    h.dispatch_many("a", "b")
    assert taker.heard() == b"wake"
    assert [job.id for job in h.take(limit=9)] == ["a", "b"]


@promise
def a_waiter_that_runs_other_jobs_gets_hand_offs(h: Harness) -> None:
    taker = Taker(h)
    taker.sleep(beside=1)
    h.dispatch("a")
    assert taker.heard().startswith(b"job:")


@promise
def a_suspect_is_never_handed_off(h: Harness) -> None:
    """A suspect is due first; the job that is dispatched is handed off instead."""
    h.join("dies", lease=5)
    h.dispatch("poison")
    poison = h.take_one("dies", lease=5)
    taker = Taker(h)
    h.die(poison)
    assert h.row("due", "poison").suspect
    assert taker.heard() == b"wake"
    h.dequeue("c1", lease=5, waiter="c1", waits=3, accepts_hand_off=True, beside=1)
    h.dispatch("a")
    assert h.commands.handed(taker.heard(), "c1").id == "a"
    assert h.rows("poison").keys() == {"due"}


@promise
def a_producer_with_the_dispatch_keys_only_wakes(h: Harness) -> None:
    taker = Taker(h)
    keys = h.keys.for_dispatch
    h.redis.execute_command(
        "FCALL", "queasy_test_put", len(keys), *keys, repr(h.time * 1000), "", "", "a", "1"
    )
    assert taker.heard() == b"wake"
    assert h.rows("a").keys() == {"due"}


@promise
def a_repeated_put_makes_no_hand_off(h: Harness) -> None:
    taker = Taker(h)
    put = h.commands.dispatch([DispatchItem("a", b"1")], ("caller", 1))
    assert h.call(put)[0].status == "created"
    assert h.end(h.commands.handed(taker.heard(), "c1"), Finish()) == "finished"
    taker.sleep()
    assert h.call(put)[0].status == "created"
    assert taker.heard() == b""
    assert h.rows("a") == {}
