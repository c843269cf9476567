"""The table of running jobs, read by the supervisor while the worker writes it."""

import math
import os
import subprocess
import sys
import time

from queasy.worker.liveness.inflight_table import InflightTable

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
"""


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


def test_the_run_clock_does_not_pass_while_the_worker_is_frozen() -> None:
    table = InflightTable(1, 1)
    before = table.run_clock()
    assert abs(before - time.monotonic()) < 1
    table.add_frozen(60)
    table.add_frozen(40)
    assert -100 <= table.run_clock() - before < -99
    assert table.run_clock_at(1000.0) == 900.0
