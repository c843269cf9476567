"""Which queues of a worker need a decision, without a server."""

import functools
import math

import pytest

from queasy.worker.intake.activity import SHORTEST_TURN, TURN, Activity, Turn
from queasy.worker.intake.queue_state import QueueState
from queasy.worker.liveness.inflight_table import InflightTable
from tests.worker.intake.services import Clock, service

NOW = 1000.0


def test_resting_queue_wakes_at_its_alarm() -> None:
    activity = Activity()
    activity.awake.update((0, 1, 2))
    activity.let_rest({0: 5.0, 1: None, 2: math.inf}.get)
    assert activity.awake == {1}
    assert activity.next_alarm == 5.0
    activity.wake_due(4.9)
    assert activity.awake == {1}
    activity.wake_due(5.0)
    assert activity.awake == {0, 1}
    assert activity.next_alarm is None


def test_queue_that_rests_again_and_again_leaves_one_alarm() -> None:
    """Else a queue that the server wakes a thousand times a second leaves as many alarms."""
    activity = Activity()
    for second in range(1000):
        activity.awake.add(0)
        activity.let_rest(lambda _, until=60.0 + second: until)
    activity.wake_due(60.0)
    assert activity.awake == {0}
    assert activity.next_alarm is None


def test_earlier_alarm_replaces_a_later_one() -> None:
    activity = Activity()
    for until in (60.0, 1.0):
        activity.awake.add(0)
        activity.let_rest(lambda _, until=until: until)
    assert activity.next_alarm == 1.0


def test_turn_lasts_until_its_time_or_until_its_queue_has_no_more() -> None:
    activity = Activity()
    activity.sharing.update((0, 1))
    activity.begin_turn(0, 100, NOW)
    activity.begin_turn(1, 100, NOW)
    turn = activity.turn(NOW)
    assert turn == Turn(0, 100, NOW + TURN)
    assert activity.turn(turn.until) is None
    activity.begin_turn(1, 100, turn.until)
    assert activity.turn(turn.until) == Turn(1, 100, turn.until + TURN)
    activity.awake.clear()
    activity.end_sharing(0)
    assert activity.turn(turn.until) is not None, "it was not its turn"
    activity.sharing.add(0)
    activity.end_sharing(1)
    assert activity.turn(turn.until) is None
    assert activity.awake == {0}, "the others need not wait any longer"


def test_queue_of_higher_priority_takes_the_turn() -> None:
    activity = Activity()
    activity.sharing.update((0, 1))
    activity.begin_turn(0, 100, NOW)
    activity.begin_turn(1, 101, NOW)
    assert activity.turn(NOW) == Turn(1, 101, NOW + TURN)


@pytest.mark.parametrize(("queues", "length"), [(10, TURN), (16, 0.1 / 16), (50, SHORTEST_TURN)])
def test_turns_are_shorter_if_many_queues_take_turns(queues: int, length: float) -> None:
    activity = Activity()
    activity.sharing.update(range(queues))
    activity.begin_turn(0, 100, NOW)
    assert activity.turn(NOW) == Turn(0, 100, NOW + length)


def test_idle_queue_rests_until_something_happens_to_it(clock: Clock) -> None:
    activity = Activity()
    state = QueueState(service(), 0, InflightTable(1, 100), activity)
    state.join(clock.now + 20)
    assert state.rests_until(clock.now) is None
    state.poll_at = clock.now + 60
    assert state.rests_until(clock.now) == clock.now + 60
    promise_to_poll = functools.partial(state.poll_within, 2.0)
    for happen in (
        state.wake,
        promise_to_poll,
        state.poll_now,
        state.lose_connection,
        state.order_unserve,
    ):
        activity.awake.clear()
        happen()
        assert activity.awake == {0}, happen
