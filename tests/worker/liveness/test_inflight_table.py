"""The table of running jobs, read by the supervisor while the worker writes it."""

import math
import os
import subprocess
import sys
import time

from queasy.worker.liveness.inflight_table import GIVEN_BACK, InflightTable, OnLoop

WRITER = """
import math, sys, time
from queasy.worker.liveness.inflight_table import InflightTable

table = InflightTable(1, 10, int(sys.argv[1]))
table.loop_turned(1e9)
print("started", flush=True)
end, token = time.monotonic() + 2, 0
while time.monotonic() < end:
    for _ in range(100):
        token += 1
        slot = table.start_run(0, f"job-{token}", token, 7.0, math.inf)
        table.loop_turned(1e9)
        table.end_run(slot)
        table.free([slot])
"""


def test_ended_run_stays_in_the_table_until_it_is_reported() -> None:
    table = InflightTable(1, 10)
    ended, running = (table.start_run(0, id_, token, 7.0, 8.0) for token, id_ in enumerate("ab", 1))
    table.end_run(ended)
    assert [entry.id for entry in table.entries()] == ["b"], "the watchdog does not see it"
    assert [entry.id for entry in table.entries(unreported=True)] == ["a", "b"]
    assert table.run_count == 1
    table.free([ended])
    assert [entry.id for entry in table.entries(unreported=True)] == ["b"]
    table.end_run(running)
    table.free([running])
    table.close()


def test_table_has_room_for_outcomes_that_are_not_reported() -> None:
    table = InflightTable(1, 10)
    for token in range(1, table.slots + 1):
        table.end_run(table.start_run(0, "a", token, 7.0, 8.0))
    assert len(table.entries(unreported=True)) == table.slots == 40
    table.close()


def test_entry_read_while_it_changes_is_never_a_mix_of_two_runs() -> None:
    """Bug: in a burst of short runs one seemed overdue, and its worker was drained."""
    fd = InflightTable.create_file(1, 10)
    table = InflightTable(1, 10, fd)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        assert writer.stdout.readline() == b"started\n"
        seen, beats = 0, set[float]()
        while writer.poll() is None:
            for entry in table.entries():
                seen += 1
                assert entry.deadline == math.inf, entry
                assert (entry.id, entry.started) == (f"job-{entry.token}", 7.0), entry
            beats.add(table.loop_turned_at)
    assert beats == {1e9}
    assert seen > 100
    assert writer.returncode == 0
    table.close()
    os.close(fd)


def test_ended_run_counts_as_begun_and_not_as_a_run() -> None:
    """The supervisor must not give back a job that has run and is not reported yet."""
    table = InflightTable(2, 3)
    ended = [table.start_run(1, "a", token, 0.0, 0.0) for token in (1, 2)]
    table.start_run(1, "b", 3, 0.0, 0.0)
    for slot in ended:
        table.end_run(slot)
    assert table.run_count == len(table.entries()) == 1
    assert table.begun(1) == {1, 2, 3}
    assert table.begun(0) == set()
    table.free(ended[:1])  # it is reported
    assert table.begun(1) == {2, 3}
    table.close()


def test_the_run_on_the_loop_is_known_only_until_the_loop_turns() -> None:
    table = InflightTable(1, 3)
    table.loop_turned(1.0)
    assert table.on_loop is None
    table.set_on_loop((0, 2**40), 1.5, 2.5)
    assert table.on_loop == OnLoop((0, 2**40), 1.5, 2.5)
    table.set_on_loop(None, 3.0, 3.0)
    assert table.on_loop == OnLoop(None, 3.0, 3.0)
    table.loop_turned(4.0)
    assert table.on_loop is None
    table.close()


def test_run_does_not_begin_if_the_supervisor_gave_its_job_back() -> None:
    table = InflightTable(2, 3)
    table.revoke(1, 2**40)
    slots = [table.start_run(1, "a", 2**40 + more, 0.0, 0.0) for more in (-1, 0, 1)]
    assert [slot == GIVEN_BACK for slot in slots] == [True, True, False]
    assert table.start_run(0, "b", 1, 0.0, 0.0) >= 0
    assert {entry.token for entry in table.entries()} == {1, 2**40 + 1}
    table.close()


def test_settled_revocation_concerns_no_later_job() -> None:
    """Bug: the mark stayed. A server that forgot its data, with a clock that is behind, gave out
    lower tokens, and the worker took and released each job for ever.
    """
    table = InflightTable(2, 9)

    def begins() -> bool:
        return table.start_run(1, "a", 5, 0.0, 0.0) >= 0

    for token in (7, 7, 9):
        table.revoke(1, token)
        table.settle_revocation(1, table.revocation(1))
        assert not begins(), "its jobs are being given back"
        table.note_given_back(1)
        assert not begins(), "the worker may still hold some"
        table.settle_revocation(1, table.revocation(1))
        assert begins()
    table.revoke(1, 9)
    table.revoke(1, 9)  # it tries again
    table.settle_revocation(1, table.revocation(1))
    assert not begins()
    table.close()


def test_the_run_clock_does_not_pass_while_the_worker_is_frozen() -> None:
    table = InflightTable(1, 1)
    before = table.run_clock()
    assert abs(before - time.monotonic()) < 1
    table.add_frozen(60)
    table.add_frozen(40)
    assert -100 <= table.run_clock() - before < -99
    assert table.run_clock_at(1000.0) == 900.0
