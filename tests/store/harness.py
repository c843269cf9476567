"""A queue on a real server, driven command by command at a logical time, and audited."""

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis

from queasy.job import Job
from queasy.options import JobOptions
from queasy.outcomes import Died, Outcome
from queasy.store.command import Command
from queasy.store.commands import AUDIT_TALLIES, QueueCommands
from queasy.store.keys import NAMES, QueueKeys
from queasy.store.records import (
    DispatchItem,
    Ending,
    Taken,
    encode_id,
    pack_options,
    when_arg,
)
from tests.store.timed import timed_source, timed_words

T = TypeVar("T")
Dump = dict[str, dict[bytes, Any]]

START = 1_700_000_000.0
PAGE = 1000  # the most that one audit checks
SORTED_SETS = {
    "waiting", "waiters", "leases", "clients", "cancels", "failed_at", "broken_at", "callers",
}  # fmt: skip
# An empty queue may keep its settings and clock, its counters, and its recent callers.
FIXED = {"meta", "stats", "calls", "callers"}

_numbers = itertools.count(1)
_first_key = re.compile(r"^(.*):\{(.*)\}(-fail)?:waiting$")


def load(connection: redis.Redis, text: str | None = None) -> None:
    """Loads the build for tests, or a changed text of it, into the server."""
    connection.execute_command("FUNCTION", "LOAD", "REPLACE", text or timed_source())


def send(connection: redis.Redis, command: Command[T], now: float | None = None) -> T:
    """Sends a command to the build for tests, at a logical time or at the server's."""
    return command.read(connection.execute_command(*timed_words(command, now)))


def words_of(error: BaseException) -> str:
    """The class and the text of an error: redis-py strips the code word from some texts."""
    return f"{type(error).__name__} {error}"


@contextmanager
def refused(why: str) -> Iterator[None]:
    """Asserts that the server refuses the call in this block, for this reason."""
    try:
        yield
    except redis.RedisError as error:
        if why not in words_of(error):
            raise AssertionError(f"refused, but not for {why}") from error
    else:
        raise AssertionError(f"expected the call to be refused: {why}")


def problems_of(connection: redis.Redis, keys: QueueKeys) -> list[str]:
    """The problems that the audit finds, and entries that belong to no job."""
    problems: list[str] = []
    tallies = [0] * len(AUDIT_TALLIES)
    for offset in itertools.count(0, PAGE):
        page = send(connection, QueueCommands(keys).audit(offset, PAGE))
        problems += page.problems
        tallies = [a + b for a, b in zip(tallies, page.tallies, strict=False)]
        if offset + PAGE >= max(page.sizes, default=0):
            break
    problems += [
        f"{name}: {tally} entries have an owner, {size} exist"
        for name, tally, size in zip(AUDIT_TALLIES, tallies, page.sizes, strict=False)
        if tally != size
    ]
    return [f"{keys.name}: {problem}" for problem in problems]


def read_all(connection: redis.Redis, *queues: QueueKeys) -> Dump:
    """The contents of all keys of the queues, in one round trip; omits empty keys."""
    pipeline = connection.pipeline(transaction=False)
    found: list[tuple[str, str]] = []
    for queue in queues:
        for name, key in zip(NAMES, queue.all, strict=True):
            found.append((key.removeprefix(f"{queue.prefix}:{{{queue.queue}}}"), name))
            if name in SORTED_SETS:
                pipeline.zrange(key, 0, -1, withscores=True)
            else:
                pipeline.hgetall(key)
    contents = [dict(content) for content in pipeline.execute()]
    return {label: content for (label, _), content in zip(found, contents, strict=True) if content}


class Harness:
    """One queue and its fail queue under a prefix of their own."""

    def __init__(self, connection: redis.Redis, caller: redis.Redis | None = None) -> None:
        self.redis = connection
        self._caller = caller or connection
        self.prefix = f"t{next(_numbers)}"
        self.keys = QueueKeys(self.prefix, "q")
        self.fail_keys = QueueKeys(self.prefix, "q", fail=True)
        self.time = START
        self._used = {self.keys, self.fail_keys}
        self._pullers = (f"~p{number}" for number in itertools.count(1))

    # Sending

    @property
    def commands(self) -> QueueCommands:
        return QueueCommands(self.keys)

    @property
    def fail_commands(self) -> QueueCommands:
        return QueueCommands(self.fail_keys)

    def call(self, command: Command[T]) -> T:
        if command.keys and (named := _first_key.match(command.keys[0])):
            prefix, queue, fail = named.groups()
            self._used |= {QueueKeys(prefix, queue), QueueKeys(prefix, queue, fail=bool(fail))}
        return send(self._caller, command, self.time)

    def later(self, seconds: float) -> None:
        self.time += seconds

    def later_with_calls(self, seconds: float) -> None:
        """Lets time pass, while other clients call so often that the server hears no silence."""
        while seconds > 0:
            self.later(min(1.0, seconds))
            self.sweep()
            seconds -= 1.0

    # Shorthand for what most tests do

    def dispatch(
        self,
        id_: str = "a",
        payload: bytes = b"1",
        *,
        at: float | None = None,
        after: float | None = None,
        flags: str = "",
        options: JobOptions | None = None,
        update: bool | frozenset[str] = True,
    ) -> str:
        packed = pack_options(options or JobOptions(), update)
        item = DispatchItem(id_, payload, when_arg(at, after), flags, packed)
        return self.call(self.commands.dispatch([item]))[0].status

    def dispatch_many(self, *ids: str) -> list[str]:
        items = [DispatchItem(id_, encode_id(id_)) for id_ in ids]
        return [done.status for done in self.call(self.commands.dispatch(items))]

    def join(self, *clients: str, lease: float = 30.0) -> None:
        for client in clients:
            assert self.call(self.commands.register(client, lease)) == "ok"

    def dequeue(
        self, client: str = "", *, lease: float = 30.0, limit: int = 1, **more: Any
    ) -> Taken:
        """Dequeues for a client, or for one that is made for this dequeue."""
        client = client or next(self._pullers)
        return self.call(self.commands.dequeue(client, lease=lease, limit=limit, **more))

    def take(
        self, client: str = "", *, lease: float = 30.0, limit: int = 1, **more: Any
    ) -> list[Job]:
        return self.dequeue(client, lease=lease, limit=limit, **more).jobs

    def take_one(self, client: str = "", *, lease: float = 30.0) -> Job:
        jobs = self.take(client, lease=lease)
        assert len(jobs) == 1, "expected a job to be due"
        return jobs[0]

    def end(self, job: Job, outcome: Outcome) -> str:
        return self.call(self.commands.settle([Ending(job.id, job.token, outcome)]))[0]

    def die(self, *jobs: Job, started: int | None = None) -> list[str]:
        """Ends the leases of jobs whose process died; `started` jobs ran there, or these."""
        together = len(jobs) if started is None else started
        return self.call(self.commands.settle(endings_of(jobs, Died(together))))

    def cancel(self, *ids: str, running: bool = False) -> list[str]:
        return [one.status for one in self.call(self.commands.cancel(ids, running=running))]

    def bump(self, *clients: str, lease: float = 30.0) -> list[str]:
        return [state for state, _ in self.call(self.commands.bump(clients, lease)).clients]

    def sweep(self) -> int:
        return self.call(self.commands.sweep())

    # Inspecting

    def rows(self, id_: str = "a") -> dict[str, Job]:
        """The job in each of its states."""
        return {job.state: job for job in self.call(self.commands.get(id_))}

    def row(self, state: str, id_: str = "a") -> Job:
        rows = self.rows(id_)
        assert state in rows, f"expected {id_} to be {state}, it is {sorted(rows)}"
        return rows[state]

    def due_in(self, job: Job) -> float:
        """Seconds until run_at, to the millisecond: further digits are the order of acceptance."""
        return round(job.run_at_epoch - self.time, 3)

    def waiting(self) -> list[str]:
        return [job.id for job in self._listed(self.commands, "waiting")]

    def records(self, kind: Any = "failed", *, of_fail_queue: bool = False) -> list[Job]:
        commands = self.fail_commands if of_fail_queue else self.commands
        return self._listed(commands, kind)

    def _listed(self, commands: QueueCommands, state: Any) -> list[Job]:
        """The jobs of all pages."""
        found, cursor = self.call(commands.jobs(state, b"", 1000))
        while cursor:
            jobs, cursor = self.call(commands.jobs(state, cursor, 1000))
            found += jobs
        return found

    def dump(self) -> Dump:
        return read_all(self.redis, self.keys, self.fail_keys)

    def left(self) -> set[str]:
        """The keys that exist, except the fixed ones."""
        return {label for label in self.dump() if label.rpartition(":")[2] not in FIXED}

    def audit(self) -> None:
        """Asserts the invariants of every queue that this harness has used."""
        found = [text for keys in self._used for text in problems_of(self.redis, keys)]
        assert not found, found

    def clear(self) -> None:
        self.redis.delete(*itertools.chain.from_iterable(keys.all for keys in self._used))


def endings_of(jobs: Sequence[Job], outcome: Outcome) -> list[Ending]:
    return [Ending(job.id, job.token, outcome) for job in jobs]
