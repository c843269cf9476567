"""Which queue may hand jobs off to a worker, decided without a server."""

from queasy.worker.intake.activity import Activity
from queasy.worker.intake.hand_off import HandOffPolicy
from queasy.worker.intake.queue_state import QueueState
from queasy.worker.liveness.inflight_table import InflightTable
from tests.worker.intake.services import service


def queues(count: int) -> list[QueueState]:
    table = InflightTable(count, 100)
    activity = Activity()
    return [QueueState(service(), index, table, activity) for index in range(count)]


def test_only_queue_of_an_idle_worker_may_hand_off() -> None:
    (only,) = states = queues(1)
    policy = HandOffPolicy(states)
    assert policy.may_accept(only, idle=True)
    assert not policy.may_accept(only, idle=False)


def test_of_several_queues_the_one_whose_jobs_started_last_may_hand_off() -> None:
    first, second = states = queues(2)
    policy = HandOffPolicy(states)
    assert not policy.may_accept(first, idle=True)
    policy.note_jobs(second)
    assert policy.may_accept(second, idle=True)
    assert not policy.may_accept(first, idle=True)
    policy.note_jobs(first)
    assert policy.may_accept(first, idle=True)
    assert not policy.may_accept(second, idle=True)


def test_no_queue_may_hand_off_while_another_has_a_call_in_flight() -> None:
    first, second = states = queues(2)
    policy = HandOffPolicy(states)
    policy.note_jobs(first)
    call = second.begin("dequeue", 1, 10)
    assert not policy.may_accept(first, idle=True)
    second.end(call)
    assert policy.may_accept(first, idle=True)
    first.begin("dequeue", 1, 10)
    assert policy.may_accept(first, idle=True)


def test_job_of_another_queue_revokes_the_hand_off() -> None:
    first, second = states = queues(2)
    policy = HandOffPolicy(states)
    policy.note_poll(first, accepts=True)
    assert policy.revoke(second) is first
    assert policy.revoke(second) is None, "expected it to be revoked once"


def test_job_of_the_queue_itself_needs_no_call_to_stop_its_hand_offs() -> None:
    first, second = states = queues(2)
    policy = HandOffPolicy(states)
    policy.note_poll(first, accepts=True)
    assert policy.revoke(first) is None
    assert policy.revoke(second) is None


def test_poll_that_accepts_no_hand_off_withdraws_that_queue_only() -> None:
    first, second = states = queues(2)
    policy = HandOffPolicy(states)
    policy.note_poll(first, accepts=True)
    policy.note_poll(second, accepts=False)
    assert policy.revoke(second) is first
    policy.note_poll(first, accepts=True)
    policy.note_poll(first, accepts=False)
    assert policy.revoke(second) is None
