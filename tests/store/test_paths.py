"""The bulk paths of the library do what its general path does, key by key and reply by reply.

A test build of the library has no bulk paths. Both builds receive the same random calls, on a
server each. After every call the replies and all keys must be equal, byte for byte. Only packed
maps are compared by their values, because Lua packs the fields of a table in no particular order.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import redis

from queasy.job import Job, JobError
from queasy.options import JobOptions
from queasy.outcomes import Broken, Cancel, Fail, Finish, Outcome, Release, RetryLater, TimedOut
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.records import DispatchItem, Ending, Taken, pack_options, when_arg
from tests.servers import ServerKind, start_server
from tests.store.harness import START, load, problems_of, read_all, send, words_of
from tests.store.timed import timed_source

GENERAL = {
    "if not job and not active[i] and not scores[i] and id ~= ''": "if false and id ~= ''",
    "local has_bulk = raw and": "local has_bulk = false and",
}
LONG_ENTRY = "-" * 72
STEPS = 60
SEEDS = (*range(6), None)
FRESH = int.from_bytes(os.urandom(4), "big")  # used for the seed None: different in each run
CLIENTS = ("c1", "c2")


def general_source() -> str:
    """The library without its bulk paths."""
    text = timed_source()
    for old, new in GENERAL.items():
        assert text.count(old) == 1, f"expected once, found {text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def servers(kind: ServerKind) -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """One with the library as it is, one with the general path only."""
    with ExitStack() as stack:
        connections: list[redis.Redis] = []
        for text in (timed_source(), general_source()):
            server = stack.enter_context(start_server(kind))
            connections.append(stack.enter_context(server.client(decode_responses=False)))
            load(connections[-1], text)
        yield connections[0], connections[1]


class Pair:
    """A queue and its fail queue on both servers."""

    def __init__(self, servers: tuple[redis.Redis, redis.Redis], seed: int) -> None:
        self.servers = servers
        self.seed = seed
        self.chance = random.Random(seed)
        self.time = START
        self.keys = QueueKeys(f"seed{seed}", "q")
        self.fail_keys = QueueKeys(f"seed{seed}", "q", fail=True)
        self.held: list[tuple[bool, Job]] = []  # whether the job is of the fail queue
        self.requests = 0

    def commands(self, *, fail: bool = False) -> QueueCommands:
        return QueueCommands(self.fail_keys if fail else self.keys)

    def call(self, command: Command[Any]) -> Any:
        """Sends a command to both; the replies and what they leave are the same."""
        replies = [attempt(server, command, self.time) for server in self.servers]
        what = f"seed {self.seed}: {command.function} {command.args}"
        assert comparable(replies[0]) == comparable(replies[1]), what
        bulk, general = (read_all(server, self.keys, self.fail_keys) for server in self.servers)
        assert bulk.keys() == general.keys(), what
        for label, content in bulk.items():
            assert by_value(label, content) == by_value(label, general[label]), (what, label)
        return replies[0]

    # Random calls

    def ids(self) -> list[str]:
        """Few or many, new and known, some twice."""
        count = self.chance.choice([1, 2, 3, 7, 8, 9, 20])
        ids = [f"j{self.chance.randrange(150)}" for _ in range(count)]
        if self.chance.random() < 0.05:
            ids[0] = LONG_ENTRY
        return ids

    def dispatch(self) -> None:
        kind = self.chance.choice(["plain", "plain", "scheduled", "any"])
        items: list[DispatchItem] = []
        for id_ in self.ids():
            payload = b"%d" % self.chance.randrange(10**9) * self.chance.choice([1, 1, 1, 20])
            when = flags = ""
            options = b""
            if kind == "scheduled" or (kind == "any" and self.chance.random() < 0.5):
                after = self.chance.choice([None, 0.0, 0.001, 1.0, 60.0])
                at = None if after is not None else self.time + self.chance.choice([-5, 5])
                when = when_arg(at, after)
            if kind == "any" and self.chance.random() < 0.5:
                flags = self.chance.choice("01") + self.chance.choice("tfle")
                flags += self.chance.choice("01") + self.chance.choice("01")
            if kind == "any" and self.chance.random() < 0.3:
                own = JobOptions(max_retries=self.chance.randrange(3), max_stalls=2)
                options = pack_options(own, update=True)
            items.append(DispatchItem(id_, payload, when, flags, options))
        self.call(self.commands().dispatch(items))

    def outcome(self) -> Outcome:
        error = self.chance.choice(
            [
                None,
                JobError("ValueError", "expected 1"),
                JobError("E" * 300, "m", "fatal", "t\n" * 99),
            ]
        )
        after = self.chance.choice([None, None, 0.0, 30.0])
        bulk: list[Outcome] = [Finish(), Fail(error), RetryLater(error, after=after)]
        broken = Broken(error or JobError("DecodeError", "no", "broken"))
        others: list[Outcome] = [Release(), Cancel(), TimedOut(error), broken]
        return self.chance.choice(bulk * 3 + others)

    def endings(self, *, fail: bool) -> list[Ending]:
        """For some of the leases: mostly one outcome for all, so that the bulk paths are used."""
        mine = [job for of_fail, job in self.held if of_fail == fail]
        some = self.chance.sample(mine, self.chance.randrange(len(mine) + 1))
        common = self.outcome() if self.chance.random() < 0.7 else None
        endings: list[Ending] = []
        for job in some:
            token = job.token - (self.chance.random() < 0.05)
            endings.append(Ending(job.id, token, common or self.outcome()))
        endings += endings[: self.chance.random() < 0.1]
        gone = {job.id for job in some}
        self.held = [pair for pair in self.held if pair[0] != fail or pair[1].id not in gone]
        return endings

    def settle(self) -> None:
        fail = self.chance.random() < 0.2
        if endings := self.endings(fail=fail):
            self.call(self.commands(fail=fail).settle(endings))

    def dequeue(self) -> None:
        fail = self.chance.random() < 0.2
        self.requests += 1
        taken = self.call(
            self.commands(fail=fail).dequeue(
                self.chance.choice([*CLIENTS * 3, f"~{self.requests}"]),
                lease=30,
                limit=self.chance.choice([0, 1, 3, 8, 30]),
                request=str(self.requests),
                endings=self.endings(fail=fail),
                beside=self.chance.choice([0, 0, 2]),
            )
        )
        if isinstance(taken, Taken):
            self.held += [(fail, job) for job in taken.jobs]

    def cancel(self) -> None:
        self.call(self.commands().cancel(self.ids(), running=self.chance.random() < 0.5))

    def configure(self) -> None:
        limits = JobOptions(max_retries=self.chance.randrange(3))
        self.call(
            self.commands().configure(
                fail_handler=self.chance.random() < 0.7,
                limits=self.chance.choice([None, limits]),
                failed_limit=self.chance.choice([None, 0, 5, 1000]),
            )
        )

    def pass_time(self) -> None:
        self.time += self.chance.choice([-1, 0.001, 0.5, 5, 5, 20, 45])
        for fail in (False, True):
            for client in CLIENTS:
                self.call(self.commands(fail=fail).register(client, 30))

    def step(self) -> None:
        steps = [
            self.dispatch, self.dispatch, self.dequeue, self.dequeue, self.dequeue, self.settle,
            self.settle, self.cancel, self.configure, self.pass_time,
        ]  # fmt: skip
        self.chance.choice(steps)()


def attempt(server: redis.Redis, command: Command[Any], now: float) -> Any:
    try:
        return send(server, command, now)
    except redis.RedisError as error:
        return words_of(error)


def comparable(reply: Any) -> Any:
    """A reply as values; the order of the fields in a packed map does not count."""
    if isinstance(reply, Taken):
        return (
            reply.state, reply.next_in, reply.settled, reply.cancels, reply.held, reply.jobs,
        )  # fmt: skip
    return reply


def by_value(label: str, content: dict[bytes, Any]) -> dict[bytes, Any]:
    """The content of a key, with what Lua packed as a map read."""
    name = label.rpartition(":")[2]
    if name == "info":
        return {id_: msgspec.msgpack.decode(raw) for id_, raw in content.items()}
    if name in ("failed", "broken", "blocked"):
        return {id_: split(raw) for id_, raw in content.items()}
    return content


def split(raw: bytes) -> tuple[Any, bytes]:
    """The record at the front, and the payload after it."""
    for end in range(1, len(raw) + 1):
        try:
            return msgspec.msgpack.decode(raw[:end]), raw[end:]
        except msgspec.DecodeError:
            continue
    raise AssertionError(f"expected a packed record, got {raw!r}")


@pytest.mark.parametrize("seed", SEEDS)
def test_bulk_paths_do_what_the_general_path_does(
    servers: tuple[redis.Redis, redis.Redis], seed: int | None
) -> None:
    pair = Pair(servers, FRESH if seed is None else seed)
    print(f"seed {pair.seed}")
    for fail in (False, True):
        for client in CLIENTS:
            pair.call(pair.commands(fail=fail).register(client, 30))
    for _ in range(STEPS):
        pair.step()
    for server in servers:
        assert problems_of(server, pair.keys) + problems_of(server, pair.fail_keys) == []
        server.flushall()


def test_a_difference_between_the_paths_is_found(kind: ServerKind) -> None:
    """The comparison itself works: a mistake in each bulk path is noticed."""
    mistakes = {
        "count(q, 'finished', plain.n)": "count(q, 'finished', 1)",
        "local RETRIED = '\\171retry_count\\001'": "local RETRIED = '\\171retry_count\\002'",
        "pack_with_error(4, fields[i], problems[i],": "pack_with_error(4, fields[i], '',",
        "replies[i] = 'created'": "replies[i] = 'updated'",
    }
    with start_server(kind) as first, start_server(kind) as second, ExitStack() as stack:
        pair = tuple(stack.enter_context(s.client(decode_responses=False)) for s in (first, second))
        load(pair[1], general_source())
        for old, new in mistakes.items():
            assert timed_source().count(old) == 1, old
            load(pair[0], timed_source().replace(old, new))
            for seed in range(6):
                try:
                    test_bulk_paths_do_what_the_general_path_does((pair[0], pair[1]), seed)
                except AssertionError:
                    break
            else:
                raise AssertionError(f"not noticed: {new}")
            for server in pair:
                server.flushall()
