"""What `benchmarks.crash` concludes from the lines that jobs wrote, and that a round of it runs."""

import base64
import sys
import zlib
from pathlib import Path

import pytest
from benchmarks.harness.bench_server import bench_server
from benchmarks.harness.crash_events import Outcome, finished, measure, parse, running
from benchmarks.harness.crash_run import HOST, JOBS, kept_jobs, systems
from benchmarks.harness.crash_run import crash as run_a_round
from benchmarks.harness.environment import PEERS, script_metadata

from benchmarks import crash

BOTH = {"a", "b"}
KILLED = {1}

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the benchmark reads /proc: NOT TESTED here"
)


def outcome(text: str, kept: set[str] = BOTH) -> Outcome:
    """Of two jobs, in a round in which process 1 is killed at the time 10."""
    return measure(parse(text, BOTH), BOTH, KILLED, 10.0, kept)


def test_a_line_without_its_end_and_lines_of_other_jobs_are_ignored() -> None:
    runs = parse("start a 1 9.0\nstart other 1 9.0\nend a 1 10.0\nstart b 1 9", BOTH)
    assert [run.job for run in runs] == ["a"]
    assert finished(runs) == {"a"}
    assert running(runs) == []


def test_an_end_without_a_start_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a start of job a in process 1"):
        parse("start a 2 9.0\nend a 1 10.0\n", BOTH)


def test_recovery_lasts_until_the_last_interrupted_job_has_started_again() -> None:
    text = (
        "start a 1 9.0\nstart b 1 9.0\nstart a 2 10.5\nend a 2 11.5\nstart b 2 12.0\nend b 2 13.0\n"
    )
    found = outcome(text)
    assert (found.interrupted, found.first, found.recovery) == (2, 0.5, 2.0)
    assert (found.unfinished, found.gone, found.overlapped, found.repeated) == (0, 0, 0, 0)


def test_jobs_that_ended_before_the_kill_are_not_interrupted() -> None:
    found = outcome("start a 1 8.0\nend a 1 9.0\nstart b 1 9.0\nstart b 2 11.0\nend b 2 12.0\n")
    assert (found.interrupted, found.recovery) == (1, 1.0)


def test_one_job_that_does_not_start_again_leaves_the_recovery_open() -> None:
    found = outcome("start a 1 9.0\nstart b 1 9.0\nstart a 2 10.5\nend a 2 11.5\n", kept={"b"})
    assert (found.first, found.recovery) == (0.5, None)
    assert (found.unfinished, found.gone) == (1, 0)


def test_an_unfinished_job_that_the_server_does_not_store_is_gone() -> None:
    found = outcome("start a 1 9.0\n", kept={"b"})
    assert (found.unfinished, found.gone) == (2, 1)


def test_a_second_run_beside_the_first_overlaps_and_ends_twice() -> None:
    found = outcome("start a 2 9.0\nstart a 3 9.5\nend a 2 10.0\nend a 3 10.5\n")
    assert (found.overlapped, found.repeated) == (1, 1)


def test_a_run_after_the_kill_does_not_overlap_the_run_that_was_killed() -> None:
    assert outcome("start a 1 9.9\nstart a 2 10.1\nend a 2 11.1\n").overlapped == 0


def test_times_are_given_as_the_best_and_the_worst_round() -> None:
    assert crash.best_and_worst([2.0, 1.0, 1.5], 120) == "1.0 s to 2.0 s"
    assert crash.best_and_worst([None, 1.0], 120) == "1.0 s to not within 120 s"
    assert crash.best_and_worst([None, None], 120) == "not within 120 s"
    assert crash.counted([3, 3]) == "3"
    assert crash.counted([4, 3]) == "3 to 4"


def test_the_document_keeps_what_is_outside_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "crashes.md"
    file.write_text(f"before\n{crash.BEGIN}\nold\n{crash.END}\nafter\n")
    crash.write(file, "new")
    assert file.read_text() == f"before\n{crash.BEGIN}\n\nnew\n\n{crash.END}\nafter\n"


SCRIPTS = sorted(script for script in PEERS.glob("crash_*") if script.stem != "crash_kit")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_for_crashes_names_its_settings(script: Path) -> None:
    assert set(script_metadata(script)["tool"]["crash"]) == {"settings", "governs", "restarts"}


@linux
def test_jobs_are_found_in_whatever_way_a_peer_stores_them() -> None:
    with bench_server() as server:
        server.redis.lpush("list", b'{"body": "' + base64.b64encode(b"x" * 20 + b" job-1") + b'"}')
        server.redis.hset("hash", "data", zlib.compress(b"job-2"))
        server.redis.xadd("stream", {"data": b"job-3"})
        jobs = {"job-1", "job-2", "job-3", "job-4"}
        assert kept_jobs(server, jobs) == {"job-1", "job-2", "job-3"}


@linux
@pytest.mark.chaos  # waits until a lease ends
def test_queasy_loses_nothing_when_its_host_is_lost() -> None:
    [queasy] = systems([])
    queasy.set_up()
    with bench_server() as server:
        found = run_a_round(queasy, HOST, server, 60.0)
    assert 0 < found.interrupted <= JOBS
    assert found.recovery is not None
    assert (found.unfinished, found.overlapped) == (0, 0)
