"""A thread records what is on the event loop, while the loop does not turn."""

from queasy.worker.liveness.inflight_table import InflightTable, OnLoop
from queasy.worker.supervision.loop_watch import LoopWatch

RunId = tuple[int, int]


def test_look_records_since_when_a_run_is_on_the_loop() -> None:
    table = InflightTable(1, 3)
    watch, on_loop = LoopWatch(table), list[RunId | None]([(0, 1)])
    table.loop_turned(100.0)
    watch.look(101.0)
    assert table.on_loop is None, "there is no worker yet"
    watch.begin(lambda: on_loop[0])
    watch.look(100.1)
    assert table.on_loop is None, "the loop turns"
    for now, run, since in (
        (101.0, (0, 1), 101.0),
        (101.5, (0, 1), 101.0),
        (102.0, (0, 2), 102.0),
        (102.5, None, 102.5),
        (103.0, None, 102.5),
    ):
        on_loop[0] = run
        watch.look(now)
        assert table.on_loop == OnLoop(run, since, now)
    table.loop_turned(103.2)
    watch.look(104.0)
    assert table.on_loop == OnLoop(None, 104.0, 104.0), "the loop has turned meanwhile"
    table.close()
