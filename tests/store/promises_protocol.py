"""Promises about the form of calls: keys, arguments, formats."""

from typing import Any

import msgspec
import redis

from queasy.outcomes import Fail, Finish
from queasy.store.command import Command
from queasy.store.keys import NAMES
from queasy.store.records import DispatchItem
from tests.store.harness import Harness, refused
from tests.store.promise import promise


def _calls(h: Harness) -> list[Command[Any]]:
    commands = h.commands
    return [
        commands.dispatch([DispatchItem("b", b"1"), DispatchItem("c", b"1")]),
        commands.dispatch([DispatchItem("d", b"1", when="+1000")]),
        commands.cancel(["b"]),
        commands.register("c1", 30),
        commands.dequeue("c1", lease=30, limit=1),
        commands.bump(["c1"], 30),
        commands.counts(),
    ]


@promise
def a_call_with_too_few_keys_is_refused(h: Harness) -> None:
    h.dispatch()
    before = h.dump()
    for command in _calls(h):
        needed = min(len(command.keys), len(NAMES))
        with refused("QUEASYBAD"):
            h.call(msgspec.structs.replace(command, keys=command.keys[: needed - 1]))
    assert h.dump() == before


@promise
def a_call_may_name_more_keys_than_it_needs(h: Harness) -> None:
    h.join("c1")
    for command in _calls(h):
        try:
            h.call(msgspec.structs.replace(command, keys=h.keys.all + h.fail_keys.all))
        except redis.RedisError as error:
            raise AssertionError(command.function) from error
    assert [job.id for job in h.call(h.commands.jobs("active", b"", 9))[0]] == ["c"]


@promise
def a_call_with_the_keys_of_a_revision_before_9_is_refused(h: Harness) -> None:
    """They are in another order. Nothing is written, and the error says why."""
    h.dispatch()
    before = h.dump()
    for command in _calls(h):
        keys = [key for key in (*command.keys, *h.keys.all) if not key.endswith(":waiter_info")]
        with refused("before 9, or in no known order: update its client"):
            h.call(msgspec.structs.replace(command, keys=tuple(keys[: len(command.keys)])))
    assert h.dump() == before


def _packed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


@promise
def what_the_library_does_not_know_is_refused_before_anything_is_written(h: Harness) -> None:
    """A later revision may give a meaning to it; to ignore it would not be what was asked for."""
    h.join("c1")
    h.dispatch()
    token = h.take_one("c1").token
    h.dispatch("b")
    before = h.dump()
    job, dequeue = ("", "", "n", b"1", "", ""), ("", "", "c1", "1000", "1", "", "", "0", "0")
    for function, args in [
        ("dispatch", (*job, _packed(set={"priority": 1}, update=[]))),
        ("dispatch", (*job, _packed(set={}, update=["priority"]))),
        ("dispatch", (*job, _packed(set={}, update=[], lane="x"))),
        ("dispatch", ("", "", "n", b"1", "", "1t101", "")),
        ("cancel", ("", "", "2", "b")),
        ("settle", ("finish", "a", token, _packed(result=b"1"))),
        ("settle", ("fail", "a", token, _packed(error={"type": "E"}, dispatch=[]))),
        ("settle", ("retry", "a", token, _packed(when="+1") + b"\x01")),
        ("settle", ("retry", "a", token, _packed(error={}, when="+1") + b"0")),
        ("settle", ("retry", "a", token, _packed(when=5))),
        ("settle", ("park", "a", token, "")),
        ("dequeue", (*dequeue, "hand steal", "")),
        ("dequeue", (*dequeue, "", "", "more")),
        ("dequeue", (*dequeue, "")),
        ("configure", (_packed(limits={"priority": 1}),)),
        ("configure", (_packed(colour="red"),)),
        ("register", ("c2", "1000", "", "more")),
        ("extend", ("a", token, "1000", "more")),
        ("evict", ("c1", "park")),
        ("sweep", ("more",)),
        ("trim", ("failed", "0", "more")),
        ("counts", ("more",)),
    ]:
        command = Command(function, h.keys.with_fail_queue, args, lambda reply: reply)
        with refused("QUEASYBAD"):
            h.call(command)
    assert h.dump() == before


@promise
def a_queue_in_a_later_format_is_refused(h: Harness) -> None:
    h.dispatch()
    h.redis.hset(h.keys.base + "meta", "format", "2")
    before = h.dump()
    for command in _calls(h):
        with refused("QUEASYNEW"):
            h.call(command)
    assert h.dump() == before
    h.redis.hset(h.keys.base + "meta", "format", "1")
    assert h.take_one().id == "a"


@promise
def a_job_is_not_given_up_into_a_fail_queue_in_a_later_format(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.join("c1")
    h.dispatch()
    run = h.take_one("c1")
    h.call(h.fail_commands.configure(paused=False))
    h.redis.hset(h.fail_keys.base + "meta", "format", "2")
    before = h.dump()
    with refused("QUEASYNEW"):
        h.end(run, Fail())
    assert h.dump() == before
    h.redis.hset(h.fail_keys.base + "meta", "format", "1")


@promise
def the_first_write_to_a_queue_records_its_format(h: Harness) -> None:
    h.dispatch()
    assert h.redis.hget(h.keys.base + "meta", "format") == b"1"


@promise
def a_lease_lasts_at_most_a_day(h: Harness) -> None:
    h.join("c1")
    h.dispatch()
    run = h.take_one("c1", lease=86_400)
    before, too_long = h.dump(), 86_400.001
    for command in [
        h.commands.register("c2", too_long),
        h.commands.bump(["c1"], too_long),
        h.commands.extend("a", run.token, too_long),
        h.commands.dequeue("c1", lease=too_long, limit=1),
        h.commands.dequeue("c1", lease=1, limit=1, waiter="c1", waits=too_long),
    ]:
        with refused("at most 24 hours"):
            h.call(command)
    assert h.dump() == before


@promise
def an_audit_checks_at_most_a_thousand_entries(h: Harness) -> None:
    """Bug: it accepted any number, and 200,000 jobs took the server 1.1 seconds."""
    with refused("QUEASYBAD"):
        h.call(h.commands.audit(0, 1001))
    h.call(h.commands.audit(0, 1000))


@promise
def a_page_of_a_list_ends_after_two_megabytes(h: Harness) -> None:
    """Bug: 1,000 jobs of 256 KiB were one page, which took the server 0.6 seconds."""
    h.join("c1")
    ids, large = [f"j{n}" for n in range(8)], b"x" * 2**20

    def pages(state: Any) -> list[list[str]]:
        found, cursor = list[list[str]](), b""
        while True:
            jobs, cursor = h.call(h.commands.jobs(state, cursor, 1000))
            found.append([job.id for job in jobs])
            if not cursor:
                return found

    def check(state: Any, order: list[str]) -> None:
        assert [id_ for page in pages(state) for id_ in page] == order
        assert max(map(len, pages(state))) == 2

    for id_ in ids:
        h.dispatch(id_, large)
    check("waiting", ids)
    check("due", ids)
    runs = [run for _ in range(4) for run in h.take("c1", limit=2)]
    check("active", ids)
    for id_ in ids:
        h.dispatch(id_, large)
    check("blocked", ids)
    assert h.cancel(*ids) == ["cancelled"] * 8
    for run in runs:
        h.end(run, Fail())
    check("failed", ids[::-1])


@promise
def a_queue_without_active_jobs_can_be_destroyed(h: Harness) -> None:
    h.call(h.commands.configure(paused=False, failed_limit=3))
    h.join("c1")
    h.dispatch_many("a", "b")
    h.end(h.take_one("c1"), Fail())
    h.dispatch("later", after=60)
    h.later(1)
    h.call(h.commands.evict("c1"))
    assert h.call(h.commands.destroy(force=False)) == ("gone", 0, 0)
    assert h.dump() == {}
    assert h.call(h.commands.destroy(force=False)) == ("gone", 0, 0)
    assert h.bump("c1") == ["lost"]
    assert h.dispatch() == "created"


@promise
def a_queue_with_active_jobs_is_destroyed_only_by_force(h: Harness) -> None:
    h.join("c1")
    h.dispatch_many("a", "b")
    run = h.take_one("c1")
    before = h.dump()
    assert h.call(h.commands.destroy(force=False)) == ("active", 1, 1)
    assert h.dump() == before
    assert h.call(h.commands.destroy(force=True)) == ("gone", 1, 1)
    h.dispatch("a")
    h.join("c2")
    later = h.take_one("c2")
    assert later.token > run.token
    assert h.end(run, Finish()) == "lost"
    assert h.end(later, Finish()) == "finished"


@promise
def clients_that_wait_in_a_destroyed_queue_are_woken(h: Harness) -> None:
    h.join("c1")
    with h.redis.pubsub() as ears:
        ears.ssubscribe(h.keys.channel("c1"))
        assert ears.get_sharded_message(timeout=5)["type"] == "ssubscribe"
        h.dequeue("c1", waiter="c1", waits=60)
        h.call(h.commands.destroy(force=True))
        message = ears.get_sharded_message(timeout=5)
        assert message is not None
        assert message["data"] == b"wake"
    assert h.dequeue("c1", waiter="c1", waits=60).state == "destroyed"


@promise
def a_queue_with_live_clients_is_destroyed_only_by_force(h: Harness) -> None:
    h.join("alive", "dead", lease=3)
    h.dispatch()
    h.later(1.5)
    h.bump("alive", lease=10)
    before = h.dump()
    assert h.call(h.commands.destroy(force=False)) == ("active", 0, 2)
    h.later(1.9)
    assert h.call(h.commands.destroy(force=False)) == ("active", 0, 1), "one is dead"
    assert h.dump() == before
    assert h.call(h.commands.destroy(force=True)) == ("gone", 0, 1)
    assert h.left() == {":clients", ":requests"}
    h.later(10)
    h.sweep()
    assert h.left() == set(), "its mark lasts as long as its lease"


@promise
def clients_of_a_destroyed_queue_learn_that_and_may_register_again(h: Harness) -> None:
    """Bug: they counted as dead, and their processes ended, with the runs of other queues."""
    h.join("c1", lease=10)
    h.dispatch_many("a", "b")
    run = h.take_one("c1", lease=10)
    h.call(h.commands.destroy(force=True))
    h.dispatch("a")
    for _ in range(3):
        h.later(6)
        assert h.bump("c1", lease=10) == ["destroyed"]
    assert h.dequeue("c1").state == "destroyed"
    assert h.call(h.commands.extend(run.id, run.token, 10)) == "lost"
    assert h.end(run, Finish()) == "lost"
    h.join("c1")
    assert h.bump("c1") == ["ok"]
    assert h.take_one("c1").id == "a"


@promise
def a_pull_lease_of_a_destroyed_queue_leaves_nothing(h: Harness) -> None:
    h.dispatch()
    h.take_one("~pull")
    h.call(h.commands.destroy(force=True))
    assert h.left() == set()


@promise
def a_fail_handler_lapses_unless_it_is_announced_again(h: Harness) -> None:
    """Bug: the fail queue of a handler that was removed from the code grew for ever."""
    h.join("c1", lease=86_400)

    def gives_up_into_the_fail_queue(client: str) -> bool:
        h.dispatch()
        before = h.call(h.fail_commands.counts()).waiting
        h.end(h.take_one(client), Fail())
        return h.call(h.fail_commands.counts()).waiting > before

    for client in ("c1", ""):  # in bulk, and one by one
        assert not gives_up_into_the_fail_queue(client)
        h.call(h.commands.configure(fail_handler=3600.0))
        assert gives_up_into_the_fail_queue(client)
        h.later(3000)
        h.call(h.commands.configure(fail_handler=3600.0))
        h.later(3000)
        assert gives_up_into_the_fail_queue(client)
        h.later(700)
        assert not gives_up_into_the_fail_queue(client)


@promise
def a_fail_handler_that_was_configured_does_not_lapse(h: Harness) -> None:
    h.call(h.commands.configure(fail_handler=True))
    h.call(h.commands.configure(fail_handler=60.0))
    h.later(3600)
    h.dispatch()
    h.end(h.take_one(), Fail())
    assert h.call(h.fail_commands.counts()).waiting == 1
    h.call(h.commands.configure(fail_handler=False))
    h.dispatch()
    h.end(h.take_one(), Fail())
    assert h.call(h.fail_commands.counts()).waiting == 1
