"""A worker's queues over time: real queue states and decisions, and a simulated server.

The simulation plays the part of the server, of the handlers and of the clock. It checks at every
step that no more jobs run than fit.
"""

import heapq
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queasy.job import Job
from queasy.outcomes import Finish
from queasy.store.records import Taken
from queasy.worker.execution.pace import Pace
from queasy.worker.execution.units import Units
from queasy.worker.intake import queue_state
from queasy.worker.intake.capacity import Room
from queasy.worker.intake.decisions import (
    Action,
    Dequeue,
    NotePassedOver,
    Probe,
    Report,
    Snapshot,
    StandDown,
    decide,
)
from queasy.worker.intake.queue_state import Call, QueueState
from queasy.worker.liveness.inflight_table import InflightTable
from tests.worker.intake.services import Clock, service

CAPACITY = 100
ROUND_TRIP = 0.001


class Simulation:
    """One worker. `due` holds the run time of each waiting job, by queue."""

    def __init__(self, clock: Clock, *specs: dict[str, Any]) -> None:
        self.clock = clock
        table = InflightTable(len(specs), CAPACITY)
        self.queues = [QueueState(service(**spec), i, table) for i, spec in enumerate(specs)]
        self.due: list[list[float]] = [[] for _ in specs]
        self.used = Units()
        self.running = [0] * len(specs)
        self.started: list[int] = []
        """The queue of each job, in the order of their starts."""
        self.closing = False
        self.pace = Pace()
        self._events: list[tuple[float, int, Any]] = []
        self._serial = 0
        self._tokens = 0
        self._timer = 0
        for queue in self.queues:
            queue.order_serve()
            queue.join(clock.now + 20)

    def dispatch(self, index: int, lengths: list[float]) -> None:
        self.due[index] += lengths
        self.queues[index].wake()

    def run(self, seconds: float) -> Iterator[float]:
        """Play for this long, one event at a time."""
        end = self.clock.now + seconds
        self._decide()
        while self._events and self._events[0][0] <= end:
            self.clock.now, _, happen = heapq.heappop(self._events)
            if happen() in (None, self._timer):  # not a timer that was replaced meanwhile
                self._check()
                self._decide()
                yield self.clock.now
        self.clock.now = end

    def _at(self, when: float, happen: Any) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, happen))

    def _check(self) -> None:
        largest = max(queue.portions.size(self.pace) for queue in self.queues)
        assert self.used.total <= CAPACITY or (
            sum(self.running) == 1 and self.used.total <= largest
        )

    def _decide(self) -> None:
        reserved = Units()
        for queue in self.queues:
            reserved.add(queue.reserved, is_async=queue.is_async)
        snapshot = Snapshot(
            now=self.clock.now,
            queues=[
                queue.view(
                    self.pace,
                    needs_reconcile=False,
                    own_units=self.running[queue.index] * queue.portions.size(self.pace),
                )
                for queue in self.queues
            ],
            room=Room(CAPACITY, self.used, reserved),
            closing=self.closing,
            running=any(self.running),
        )
        decision = decide(snapshot)
        for action in decision.actions:
            self._carry_out(action)
        later = decision.decide_again_at or (
            self.clock.now + 0.05 if decision.wanted_more else None
        )
        self._timer += 1
        if later is not None:
            timer = self._timer
            self._at(later, lambda: timer)

    def _carry_out(self, action: Action) -> None:
        queue = self.queues[action.queue]
        match action:
            case Dequeue(limit=limit, units=units):
                call = queue.begin("dequeue", limit, units)
                queue.begin_poll()
                self._at(self.clock.now + ROUND_TRIP, lambda: self._answer(queue, call))
            case Probe():
                call = queue.begin("probe")
                queue.begin_poll()
                self._at(self.clock.now + ROUND_TRIP, lambda: self._answer(queue, call))
            case Report():
                call = queue.begin("report")
                queue.outcomes.take()
                self._at(self.clock.now + ROUND_TRIP, lambda: queue.end(call))
            case NotePassedOver():
                queue.pass_over()
            case _:
                queue.stand_down()

    def _answer(self, queue: QueueState, call: Call) -> None:
        due = self.due[queue.index]
        seconds, due[:] = due[: call.limit], due[call.limit :]
        settled = ["finished"] * len(queue.outcomes.take())
        taken = Taken("ok", 0 if due else None, settled, [], len(seconds), 0, list)
        queue.plan_poll(taken, call.limit, 8.0, self.clock.now - ROUND_TRIP)
        queue.note_answer(call, taken)
        queue.end(call)
        for length in seconds:
            self._start(queue, length)

    def _start(self, queue: QueueState, seconds: float) -> None:
        assert not self.closing or seconds is not None
        size = queue.portions.size(self.pace)
        self.used.add(size, is_async=queue.is_async)
        self.running[queue.index] += 1
        self.started.append(queue.index)
        self._tokens += 1
        token = self._tokens

        def end() -> None:
            self.used.add(-size, is_async=queue.is_async)
            self.running[queue.index] -= 1
            job = Job(id=str(token), queue="q", state="active", payload=b"", token=token)
            queue.outcomes.add_of(job, Finish())

        self._at(self.clock.now + seconds, end)


def test_worker_of_one_queue_runs_all_its_jobs(clock: Clock) -> None:
    simulation = Simulation(clock, {"size": 10})
    simulation.dispatch(0, [0.05] * 200)
    for _ in simulation.run(3):
        pass
    assert simulation.started == [0] * 200


def test_large_job_starts_although_small_ones_never_end(clock: Clock) -> None:
    """Small jobs of random length keep coming, so that the worker is never idle by itself."""
    simulation = Simulation(clock, {"size": 60}, {"size": 1})
    lengths = [0.2 + 0.013 * (n % 37) for n in range(1000)]
    simulation.dispatch(1, lengths)
    for _ in simulation.run(1):
        if len(simulation.due[1]) < 100:
            simulation.dispatch(1, lengths)
    simulation.dispatch(0, [0.1])
    for _ in simulation.run(3):
        if len(simulation.due[1]) < 100:
            simulation.dispatch(1, lengths)
        if 0 in simulation.started:
            return
    pytest.fail("the large job was starved")


def test_higher_priority_starts_before_a_backlog(clock: Clock) -> None:
    simulation = Simulation(clock, {"size": 25, "priority": 1}, {"size": 25, "priority": 2})
    simulation.dispatch(0, [0.02] * 200)
    for _ in simulation.run(0.2):
        pass
    before = len(simulation.started)
    simulation.dispatch(1, [0.02] * 40)
    for _ in simulation.run(10):
        pass
    after = simulation.started[before:]
    last_high = len(after) - after[::-1].index(1)
    assert after[:last_high].count(0) <= 8, "what was being taken when the others came"


queues = st.lists(
    st.fixed_dictionaries(
        {"size": st.sampled_from((1, 7, 10, 34, 60, 100)), "priority": st.integers(1, 2)}
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=40)
@given(queues, st.data())
def test_any_queues_keep_to_the_capacity_and_every_job_runs(
    specs: list[dict[str, Any]], data: Any
) -> None:
    clock, before = Clock(), queue_state.time
    queue_state.time = clock  # type: ignore[assignment]
    try:
        simulation = Simulation(clock, *specs)
        lengths = st.sampled_from((0.0005, 0.01, 0.3))
        jobs = [data.draw(st.lists(lengths, max_size=40)) for _ in specs]
        for index, some in enumerate(jobs):
            simulation.dispatch(index, some)
        for _ in simulation.run(30):
            pass
        for index, some in enumerate(jobs):
            assert simulation.started.count(index) == len(some)
    finally:
        queue_state.time = before


@settings(deadline=None, max_examples=40)
@given(queues, st.integers(1, 60))
def test_nothing_is_requested_after_closing(specs: list[dict[str, Any]], events: int) -> None:
    clock, before = Clock(), queue_state.time
    queue_state.time = clock  # type: ignore[assignment]
    try:
        simulation = Simulation(clock, *specs)
        for index in range(len(specs)):
            simulation.dispatch(index, [0.01] * 500)
        for number, _ in enumerate(simulation.run(20)):
            if number == events:
                simulation.closing = True
                in_flight = sum(view.calls for view in simulation.queues)
                left = sum(map(len, simulation.due))
        if simulation.closing:
            taken = left - sum(map(len, simulation.due))
            assert taken <= 1000 * in_flight
            assert not any(simulation.running)
            assert in_flight or not taken
    finally:
        queue_state.time = before


def test_full_worker_with_an_overdue_poll_stops_being_the_waiter(clock: Clock) -> None:
    """Bug: the full worker stayed the timekeeper, so the job waited until it had capacity."""
    state = QueueState(service(size=10), 0, InflightTable(1, 100))
    now = clock.now
    state.order_serve()
    state.join(now + 20)
    soon = Taken("ok", 0.008, [], [], 0, 0, list)
    state.plan_poll(soon, 1, 8.0, now - 0.02)
    assert 0 < state.poll_at <= now
    view = state.view(Pace(), needs_reconcile=False, own_units=0)
    full = Room(100, Units(awaited=100), Units())
    decision = decide(Snapshot(now=clock.now, queues=[view], room=full, running=True))
    assert decision.actions == [NotePassedOver(0), StandDown(0)]
