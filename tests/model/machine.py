"""The steps that Hypothesis draws. Ids and payloads are few, so that steps affect each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model.jobs import Number
from tests.model.model import Queue
from tests.model.pair import Pair
from tests.model.values import Ending, Item, is_for_one_lease

START = 1_760_000_000_000.0
IDS = ("a", "b", "a:1", "b;", "ü\n", "c")
FAIL_QUEUE_IDS = ("x", "y")
CLIENTS = ("w1", "w1", "w2", "w1-", "~p", "~q", "~~c")
ERRORS = (None, {"message": "no", "kind": "retriable"}, {"type": "E", "traceback": "t" * 40})

queues = st.sampled_from(("main",) * 7 + ("fail",))
passed = st.sampled_from((0.0, 0.0, 0.001, 0.5, 1.0, 40.0))
jumps = st.sampled_from(
    (1_000.0, 2_000.0, 3_000.0, 9_999.0, 10_000.0, 10_000.5, 25_000.0, 400_000.0, -700.0, -30_000.0)
)
leases = st.sampled_from((9_000, 30_000, 3_000, 60_000, 1))
few = st.integers(0, 11)
picks = st.lists(few, min_size=1, max_size=4)
payloads = st.sampled_from((b"1", b"two", b"", b"\x81\xa1a\x01", b"\x00\xff:"))
flags = st.sampled_from(
    ("", *(d + m + r + a for d in "10" for m in "tfle" for r in "10" for a in "000012"))
)
# A number is relative to the current time.
whens = st.sampled_from(
    ("",) * 8 + ("+0", "+-5", "+600", "+2500.25", "+20000", -5000, 0, 800, 3000)
)
retry_whens = st.sampled_from(("", "", "", "+0", "+0", "+700", -100, 0, 900))
options = st.sampled_from(
    (
        None, None, None,
        ({"max_retries": 1}, ["max_retries"]),
        ({"max_retries": 0, "timeout": 500.0}, ["max_retries", "timeout"]),
        ({"max_retries": 2, "min_backoff": 0.0}, ["min_backoff"]),
        ({"max_stalls": 1, "max_timeouts": 1}, ["max_stalls", "max_timeouts"]),
        ({"max_expiries": 2, "max_retries": 2.0**31}, ["max_expiries", "max_retries"]),
        ({"min_backoff": 700.5, "max_backoff": 1000.0}, ["min_backoff", "max_backoff"]),
        ({"max_timeouts": 2}, []),
        ({}, ["max_retries", "max_stalls"]),
        ({}, []),
    )
)  # fmt: skip
limits = st.sampled_from(
    (
        {},
        {"max_stalls": 1, "max_expiries": 1},
        {"max_retries": 1, "min_backoff": 100.0},
        {"max_timeouts": 2, "max_stalls": 2.0**31},
    )
)
settings_changed = st.fixed_dictionaries(
    {},
    optional={
        "limits": limits,
        "fail_handler": st.sampled_from((1, 1, 0)),
        "failed_limit": st.integers(0, 3),
        "broken_limit": st.integers(0, 3),
        "paused": st.sampled_from((0, 0, 0, 0, 0, 1)),
    },
)
item = st.tuples(few, payloads, whens, flags, options)
# The long lists make the library use tables instead of single calls.
items = st.lists(item, min_size=1, max_size=4) | st.lists(item, min_size=8, max_size=9)
# A caller, and the distance of its number from that of its last call.
calls = st.sampled_from((None, None, ("p", 1), ("p", 1), ("q", 1), ("q", 3), ("p", 0), ("q", -1)))
verbs = st.sampled_from(
    ("finish", "retry", "retry", "timeout", "fail", "fail", "release", "cancel", "broken", "death")
)
tokens = st.sampled_from(("right",) * 9 + ("stale", "stale", "invented", "cut", "longer"))
ending = st.tuples(verbs, few, tokens, retry_whens, st.sampled_from(ERRORS))
alike = st.builds(
    lambda verb, error, n: [(verb, pick, "right", "", error) for pick in range(n)],
    verbs, st.sampled_from(ERRORS), st.integers(2, 6),
)  # fmt: skip
several = st.lists(ending, min_size=1, max_size=4)
endings = st.one_of(several, several, several, alike)
batch_limits = st.sampled_from((1, 2, 4, 6, 0))
no_endings = st.one_of(st.just([]), st.just([]), several, alike)
kinds = st.sampled_from(("failed", "broken"))
clients = st.sampled_from(CLIENTS)
dead_clients = st.sampled_from(("", "~p", "w2"))
idle_counts = st.sampled_from((0, 0, 0, 11))
lease_counts = st.sampled_from((101, 102, 130, 100, 60, 1))
client_calls = st.sampled_from(("register", "register", "bump", "bump", "sweep", "evict", "evict"))
started = st.one_of(st.just([]), picks)
beside = st.sampled_from((0, 0, 1, 2, 5))
record_verbs = st.sampled_from(("requeue", "requeue", "drop", "trim"))


# Each move: its relative frequency, and its arguments.
MOVES: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "wait": (3, {"jump": jumps}),
    "dispatch": (8, {"items": items, "call": calls}),
    "dequeue": (
        9,
        {
            "client": clients,
            "lease": leases,
            "limit": batch_limits,
            "again": st.sampled_from((False, False, True)),
            "waits": st.integers(0, 3),
            "ended": no_endings,
            "beside": beside,
            "hand": st.booleans(),
            "call": calls,
        },
    ),
    "settle": (8, {"ended": endings}),
    "cancel": (2, {"ids": picks, "running": st.booleans(), "call": calls}),
    "repeat_call": (3, {"later": passed, "back": st.sampled_from((0, 0, 0, 1, 2, 5))}),
    "call_of_a_client": (
        4,
        {
            "call": client_calls,
            "clients": st.lists(clients, min_size=1, max_size=3),
            "lease": leases,
        },
    ),
    "crash": (
        3,
        {
            "client": clients,
            "pick": few,
            "started": started,
            "limit": batch_limits,
            "together": st.integers(1, 9),
            "beside": beside,
        },
    ),
    "extend": (1, {"pick": few, "token": tokens, "lease": leases}),
    "configure": (1, {"settings": settings_changed}),
    "records": (3, {"verb": record_verbs, "kind": kinds, "ids": picks, "call": calls}),
}
WEIGHTED = [name for name, (weight, _) in MOVES.items() for _ in range(weight)]
moves = st.sampled_from(WEIGHTED)
arguments = {name: st.fixed_dictionaries(given) for name, (_, given) in MOVES.items()}


class QueueMachine(RuleBasedStateMachine):
    """Takes steps on a server and on the model; `Pair` compares the two after each step.

    There is only one rule. With a rule for each move, Hypothesis would leave most moves out of most
    runs, and a run without dispatches, dequeues or outcomes tests nothing.
    """

    pair: ClassVar[Pair]
    on_step: ClassVar[Callable[[], None]]

    def __init__(self) -> None:
        super().__init__()
        self.pair.reset()
        self.now = START
        self.on = "main"
        self.requests = 0
        self.given: dict[str, list[tuple[str, int]]] = {"main": [], "fail": []}

    @initialize(lease=leases, settings=settings_changed)
    def begin(self, lease: int, settings: dict[str, Any]) -> None:
        self.step("configure", **settings)
        for client in ("w1", "w2"):
            self.step("register", client=client, lease=lease, worker=b"")

    @rule(queue=queues, after=passed, move=moves, data=st.data())
    def move(self, queue: str, after: float, move: str, data: st.DataObject) -> None:
        self.on = queue
        self.now += after
        getattr(self, move)(**data.draw(arguments[move]))

    def step(self, name: str, /, **arguments: Any) -> Any:
        reply = self.pair.run(name, self.on, self.now, **arguments)
        if name == "dequeue":
            self.given[self.on] += [(id_, token) for id_, token, *_ in reply[3]]
        type(self).on_step()
        return reply

    # Drawn values, translated into arguments for the current state

    @property
    def model(self) -> Queue:
        return self.pair.queues[self.on]

    def id(self, pick: int) -> str:
        """Any id of the main queue; for the fail queue also the ids of its waiting jobs."""
        there = IDS if self.on == "main" else (*FAIL_QUEUE_IDS, *self.model.waiting)
        return there[pick % len(there)]

    def lease(self, pick: int, token: str) -> tuple[str, str]:
        """An id and a token: of an active run, of an earlier run, or invented."""
        runs, given = list(self.model.active.items()), self.given[self.on]
        if token in ("right", "cut", "longer") and runs:
            id_, run = runs[pick % len(runs)]
            right = str(run.token)
            return id_, {"cut": right[:-1], "longer": f"{right}0"}.get(token, right)
        if token == "stale" and given:
            id_, number = given[-1 - pick % len(given)]
            return id_, str(number)
        return self.id(pick), str(self.model.token + pick)

    def when(self, when: str | int) -> str:
        return when if isinstance(when, str) else repr(self.now + when)

    def call(self, drawn: Number) -> Number:
        if drawn is None:
            return None
        caller, further = drawn
        last = self.model.calls.get(caller)
        return caller, max(0, (last.number if last else 0) + further)

    def endings(self, drawn: list[Any]) -> list[Ending]:
        return [
            Ending(verb, *self.lease(pick, token), self.when(when), error)
            if verb != "death"
            else Ending(verb, *self.lease(pick, token), str(1 + pick % 5), None)
            for verb, pick, token, when, error in drawn
        ]

    # The moves

    def wait(self, jump: float) -> None:
        self.now += jump

    def dispatch(self, items: list[Any], call: Number) -> None:
        ids = IDS if self.on == "main" else FAIL_QUEUE_IDS
        sent = [
            Item(ids[pick % len(ids)], payload, self.when(when), flags, given)
            for pick, payload, when, flags, given in items
        ]
        self.step("dispatch", items=sent, call=self.call(call))

    def cancel(self, ids: list[int], running: bool, call: Number) -> None:
        picked = [self.id(pick) for pick in ids]
        self.step("cancel", ids=picked, running=running, call=self.call(call))

    def dequeue(
        self, client: str, lease: int, limit: int, again: bool, waits: int, ended: list[Any],
        beside: int = 0, hand: bool = False, call: Number = None,
    ) -> None:  # fmt: skip
        if not again and not is_for_one_lease(client) and not self.model.alive(client):
            self.step("register", client=client, lease=lease, worker=b"")
        self.requests += not again
        waiter = ("", client, client, "idle")[waits]
        request = f"r{self.requests}" if client == "w2" else str(self.requests)
        self.step(
            "dequeue", client=client, lease=lease, limit=limit, request=request,
            waiter=waiter, waits=0 if waits == 1 else 3000, endings=self.endings(ended),
            beside=beside, hand=hand,
            call=self.call(call) if is_for_one_lease(client) else None,
        )  # fmt: skip

    def settle(self, ended: list[Any]) -> None:
        self.step("settle", endings=self.endings(ended))

    def repeat_call(self, later: float, back: int) -> None:
        """Send the last call again, or an earlier one."""
        name, self.on, _, arguments = self.pair.steps[-1 - back % len(self.pair.steps)]
        self.now += later
        self.step(name, **arguments)

    def call_of_a_client(self, call: str, clients: list[str], lease: int) -> None:
        match call:
            case "register":
                worker = b"host" if clients[1:] else b""
                self.step("register", client=clients[0], lease=lease, worker=worker)
            case "bump":
                self.step("bump", lease=lease, clients=clients)
            case "sweep":
                self.step("sweep")
            case _:
                self.step("evict", client=clients[0])

    def crash(
        self, client: str, pick: int, started: list[int], limit: int, together: int, beside: int
    ) -> None:
        """A client with leases dies, and another takes the jobs that are due then."""
        holders = [run.client for run in self.model.active.values()]
        self.bury(holders[pick % len(holders)] if holders else client, started, together)
        self.dequeue(client, 30_000, limit, False, pick % 4, [], beside)

    def bury(self, client: str, started: list[int], together: int) -> None:
        """End a dead client. Its supervisor believes that these jobs had started, and how many ran
        together in its process.
        """
        held = self.model.runs_of(client)
        ids = [held[pick % len(held)] for pick in started] if held else []
        deaths = [
            Ending("death", id_, str(self.model.active[id_].token), str(together), None)
            for id_ in ids
        ]
        if deaths:
            self.step("settle", endings=deaths)
        self.step("evict", client=client)

    def extend(self, pick: int, token: str, lease: int) -> None:
        id_, number = self.lease(pick, token)
        self.step("extend", id_=id_, token=number, lease=lease)

    def configure(self, settings: dict[str, Any]) -> None:
        self.step("configure", **settings)

    def records(self, verb: str, kind: str, ids: list[int], call: Number) -> None:
        there = [*self.model.records[kind], "c"]
        picked = [there[pick % len(there)] for pick in ids]
        match verb:
            case "trim":
                self.step("trim", kind=kind, keep=ids[0] % 4)
            case "requeue":
                self.step("requeue", kind=kind, ids=picked, call=self.call(call))
            case _:
                self.step(verb, kind=kind, ids=picked)


class CrowdMachine(QueueMachine):
    """Starts with clients that hold more jobs than one sweep may end."""

    @initialize(
        lease=leases, held=st.tuples(lease_counts, lease_counts), idle=idle_counts,
        dead=dead_clients, started=started,
    )  # fmt: skip
    def take_many(
        self, lease: int, held: tuple[int, int], idle: int, dead: str, started: list[int]
    ) -> None:
        self.step("configure", paused=0)
        crowd = [Item(f"n{number}", b"n") for number in range(sum(held))]
        self.step("dispatch", items=crowd)
        for client in ("w2", *(f"i{number}" for number in range(idle))):
            self.step("register", client=client, lease=lease, worker=b"h")
        self.dequeue("w2", lease, held[0], False, 0, [])
        self.dequeue("~p", lease, held[1], False, 0, [])
        if dead:
            self.bury(dead, started, sum(held))
