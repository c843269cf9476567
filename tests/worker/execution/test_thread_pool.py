"""Plain functions that are interrupted in their thread."""

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from queasy.outcomes import Interrupted
from queasy.worker.execution.thread_pool import InterruptibleCall

def function():
    started.set()
    try:
        while True:
            time.sleep(0.001)
    finally:
        ended.append("interrupted")

started, ended = threading.Event(), []
call = InterruptibleCall(function)
results = []
thread = threading.Thread(target=lambda: results.append((call(), traced())))

def traced():
    # As a debugger or a coverage tool does, in the thread that was interrupted.
    sys.setprofile(lambda *_: None)
    try:
        return sum(range(10))
    finally:
        sys.setprofile(None)

thread.start()
started.wait()
call.interrupt()
thread.join()
sys.setprofile(lambda *_: None)
after = (lambda: "called")()
sys.setprofile(None)
print(results, ended, after)
"""


def test_interrupted_call_leaves_no_pending_interruption_in_the_interpreter() -> None:
    """Bug: clearing an interruption left CPython 3.11 with one that never went away. Every function
    call of the process checked for it, and a traced one, as under a debugger, never returned.
    """
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout == "[(None, 45)] ['interrupted'] called\n"
