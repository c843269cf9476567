"""Every function of the server through the public API: preparation, call, right answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from queasy import JobOptions
from queasy.store.command import Command
from queasy.store.records import Bumped, Dispatched
from tests.lowlevel import commands_of, lease_of, run
from tests.servers import wait_until
from tests.worker.fleet import totals

FAR = 3600.0
OF_CALLS = {"updated", "unchanged", "blocked"}  # these count calls, not jobs


@dataclass(frozen=True)
class Case:
    """A call. `queue` is a Queue or a SyncQueue: its methods have the same names and arguments."""

    function: str
    call: Callable[[Any, Any], Any]
    """Called with a queue and the result of `before`; returns an awaitable or the answer."""
    right: Callable[[Any], bool]
    """Whether this is a right answer: of the first attempt, or of a second after the first took
    effect."""
    before: Callable[[Any], Any] = field(default=lambda _: None)
    """The preparation, with a SyncQueue on a sound connection."""
    unclear: bool = False
    """Whether the call may raise Unanswered, because a second attempt cannot know."""


def command(make: Callable[[Any], Command[Any]]) -> Callable[[Any, Any], Any]:
    """A call that no public method makes."""
    return lambda queue, _: run(queue, make(commands_of(queue)))


def seed(queue: Any) -> None:
    """Jobs in every state: two waiting, two active, one blocked, two failed."""
    for id_ in ("failed", "failed too", "running", "held"):
        queue.dispatch("old", id=id_)
        lease = queue.lease(FAR, timeout=5)
        if id_.startswith("failed"):
            lease.fail("no use")
    queue.dispatch("behind", id="held")
    queue.dispatch_many(["w1", "w2"])


def taken(queue: Any) -> Any:
    """A lease that the caller holds."""
    queue.dispatch("mine", id="mine")
    while True:
        lease = queue.lease(FAR, timeout=5)
        if lease.job.id == "mine":
            return lease


def ending(name: str, **arguments: Any) -> Case:
    return Case(
        "settle",
        lambda queue, lease: getattr(mine(queue, lease), name)(**arguments),
        lambda answer: answer is True,
        taken,
        unclear=True,
    )


def mine(queue: Any, lease: Any) -> Any:
    """The same lease, on the connection of another client."""
    return lease_of(queue, lease.job)


def status(*words: str) -> Callable[[Any], bool]:
    def right(answer: Any) -> bool:
        answers: Sequence[Dispatched] = answer if isinstance(answer, list) else [answer]
        return all(one.status in words for one in answers)

    return right


def stalled(queue: Any) -> None:
    """A client that stalled: its lease has expired."""
    queue.dispatch("stalls", id="stalls")
    assert queue.lease(0.001, timeout=5) is not None
    wait_until(lambda: queue.clients()[0].expires_in < 0, "its lease has run out")


def registered(queue: Any) -> None:
    command(lambda its: its.register("w", FAR, b"{}"))(queue, None)
    queue.dispatch_many([1, 2, 3])


def cancelled(status: str) -> Callable[[Any], bool]:
    return lambda answer: answer.status == status


def equals(value: Any) -> Callable[[Any], bool]:
    return lambda answer: answer == value


CASES = {
    "dispatch of a new job": Case(
        "put", lambda q, _: q.dispatch("new"), status("created", "unchanged")
    ),
    "dispatch of a new job with an id": Case(
        "dispatch",
        lambda q, _: q.dispatch("new", id="new", delay=FAR),
        status("created", "updated", "unchanged"),
    ),
    "dispatch of many": Case(
        "put", lambda q, _: q.dispatch_many([1, 2, 3]), status("created", "unchanged")
    ),
    "dispatch that updates": Case(
        "dispatch",
        lambda q, _: q.dispatch("other", id="mine", delay=FAR, options=JobOptions(max_retries=1)),
        status("updated"),
        lambda q: q.dispatch("mine", id="mine"),
    ),
    "dispatch of an active id": Case(
        "put", lambda q, _: q.dispatch("next", id="mine"), status("blocked"), taken
    ),
    "dispatch of an active id that is skipped": Case(
        "dispatch", lambda q, _: q.dispatch("next", id="mine", if_exists="skip"), status("exists"),
        taken,
    ),
    "run now": Case(
        "dispatch", lambda q, _: q.run_now("mine"), lambda done: done.status == "due",
        lambda q: q.dispatch("mine", id="mine", delay=FAR),
    ),
    "cancel": Case(
        "cancel", lambda q, _: q.cancel("mine"), cancelled("cancelled"),
        lambda q: q.dispatch("mine", id="mine"),
    ),
    "cancel of a run": Case(
        "cancel", lambda q, _: q.cancel("mine", running=True), cancelled("requested"), taken
    ),
    "cancel of a blocked dispatch": Case(
        "cancel", lambda q, _: q.cancel("held"), cancelled("cancelled"), seed
    ),
    "lease": Case(
        "dequeue", lambda q, _: q.lease(FAR, timeout=5), lambda lease: lease.data == "first",
        lambda q: q.dispatch_many(["first", "second"]),
    ),
    "lease of what is not there": Case(
        "dequeue", lambda q, _: q.lease(FAR, timeout=0), equals(None)
    ),
    "dequeue of a batch": Case(
        "dequeue",
        command(lambda its: its.dequeue("w", lease=FAR, limit=2, request="r1")),
        lambda taken: len(taken.jobs) == 2,
        registered,
    ),
    "complete": ending("complete"),
    "retry": ending("retry", after=FAR),
    "fail": ending("fail", error="no use"),
    "release": ending("release"),
    "give in to a cancel": ending("cancel"),
    "extend": Case(
        "extend", lambda q, lease: mine(q, lease).extend(2 * FAR), equals(True), taken
    ),
    "register": Case(
        "register", command(lambda its: its.register("w", FAR, b"{}")), equals("ok")
    ),
    "bump": Case(
        "bump",
        command(lambda its: its.bump(["w"], FAR)),
        equals(Bumped([("ok", [])], None)),
        registered,
    ),
    "evict": Case(
        "evict", lambda q, lease: q.evict(lease.job.client), lambda ended: ended in (0, 1), taken
    ),
    "sweep": Case("sweep", lambda q, _: q.sweep(), lambda ended: ended in (0, 1), stalled),
    "configure": Case(
        "configure",
        lambda q, _: q.configure(
            limits=JobOptions(max_retries=7), fail_handler=True, failed_limit=5, broken_limit=6
        ),
        equals(None),
    ),
    "pause": Case("configure", lambda q, _: q.pause(), equals(None)),
    "requeue": Case("requeue", lambda q, _: q.requeue("failed"), equals(1), seed),
    "drop": Case("drop", lambda q, _: q.drop("failed"), equals(1), seed, unclear=True),
    "trim": Case("trim", lambda q, _: q.trim(1), lambda dropped: dropped in (0, 1), seed),
    "destroy": Case("destroy", lambda q, _: q.destroy(force=True), equals(None), seed),
    "counts": Case("counts", lambda q, _: q.counts(), lambda counts: counts.waiting == 2, seed),
    "get": Case("get", lambda q, _: q.get("running"), lambda job: job.data == "old", seed),
    "jobs": Case(
        "list", lambda q, _: q.jobs("waiting"), lambda jobs: [j.data for j in jobs] == ["w1", "w2"],
        seed,
    ),
    "clients": Case("clients", lambda q, _: q.clients(), lambda found: len(found) == 2, seed),
    "stats": Case("stats", lambda q, _: q.stats(), lambda found: len(found) > 2, seed),
    "audit": Case("audit", lambda q, _: q.audit(), equals([]), seed),
}  # fmt: skip


def state_of(queue: Any) -> dict[str, Any]:
    """The state of a queue without times, tokens and generated ids."""
    counts = queue.counts()
    return {
        "counts": [getattr(counts, name) for name in counts.__slots__ if name != "latency"],
        "waiting": [_without_times(job) for job in queue.jobs("waiting")],
        "others": [
            sorted(_without_times(job) for job in queue.jobs(state))
            for state in ("active", "blocked", "failed", "broken")
        ],
        "clients": sorted((c.leases, c.worker, round(c.expires_in, -2)) for c in queue.clients()),
        "stats": {kind: n for kind, n in totals(queue).items() if kind not in OF_CALLS},
    }  # fmt: skip


def _without_times(job: Any) -> tuple[str, ...]:
    # A generated id has twelve characters; one in 50,000 has lower-case letters only.
    id_ = job.id if re.fullmatch("[a-z ]{1,11}", job.id) else "*"
    counted = (job.retry_count, job.stall_count, job.timeout_count)
    error = job.error and job.error.message
    known = (job.state, id_, job.data, counted, job.cancelled, job.suspect, job.options, error)
    return tuple(map(str, known))
