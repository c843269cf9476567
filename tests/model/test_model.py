"""Random steps on the server and on the model; the whole state is compared after each step.

pytest tests/model/test_model.py -s --steps 1000000    on every installed server, with progress
"""

from __future__ import annotations

import random
import sys
import time

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import CrowdMachine, QueueMachine
from tests.model.pair import Pair
from tests.model.values import Item

STEPS = 20_000
CROWD_SHARE = 1 / 40  # of the steps
# Hypothesis keeps all examples of a run in memory, so a long run is made of many short ones.
EXAMPLES_PER_ROUND = 100
REPORT_EVERY = 10.0


@pytest.fixture
def first_seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--model-seed", None)
    return random.SystemRandom().randrange(2**32) if given is None else given


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--steps", STEPS)


class Progress:
    """Prints how many steps are done, how many are left, and a summary."""

    def __init__(self, what: str, goal: int) -> None:
        self.what, self.goal, self.done = what, goal, 0
        self.began = self.reported = time.monotonic()

    def step(self) -> None:
        self.done += 1
        if time.monotonic() - self.reported > REPORT_EVERY:
            self.report()

    def report(self) -> None:
        self.reported = time.monotonic()
        rate = self.done / (self.reported - self.began)
        left = max(0, self.goal - self.done) / max(rate, 1)
        print(
            f"{self.what}: {self.done:,} of {self.goal:,} steps, {rate:.0f} per second, "
            f"{left / 60:.1f} minutes left",
            flush=True,
        )

    def summarize(self) -> None:
        minutes = (time.monotonic() - self.began) / 60
        print(
            f"{self.what}: {self.done:,} steps in {minutes:.1f} minutes, "
            "replies and states equal after every step",
            flush=True,
        )


def run(machine: type[QueueMachine], pair: Pair, goal: int, first_seed: int, length: int) -> None:
    """Run rounds of examples until this many steps were taken and compared."""
    progress = Progress(f"{machine.__name__} on {pair.server}, seed {first_seed}", goal)
    print(f"\n{progress.what}: {goal:,} steps")
    profile = settings(
        stateful_step_count=length,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.normal,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    round_ = 0
    while progress.done < goal:
        members = {"pair": pair, "on_step": staticmethod(progress.step)}
        seeded = seed(first_seed + round_)(type(machine.__name__, (machine,), members))
        examples = min(EXAMPLES_PER_ROUND, 1 + (goal - progress.done) // length)
        try:
            run_state_machine_as_test(seeded, settings=settings(profile, max_examples=examples))
        except BaseException:
            options = (
                f"--model-seed {first_seed + round_} --steps {max(1, (examples - 1) * length)}"
            )
            print(f"failed after {progress.done} steps; repeat: {options}", file=sys.stderr)
            raise
        round_ += 1
    progress.summarize()


@pytest.mark.timeout(0)
def test_server_and_model_agree_after_random_steps(pair: Pair, steps: int, first_seed: int) -> None:
    run(QueueMachine, pair, steps, first_seed, length=60)


@pytest.mark.timeout(0)
def test_server_and_model_agree_when_many_leases_are_swept(
    pair: Pair, steps: int, first_seed: int
) -> None:
    run(CrowdMachine, pair, max(1, int(steps * CROWD_SHARE)), first_seed, length=20)


def test_server_and_model_agree_on_how_many_large_payloads_a_call_handles(pair: Pair) -> None:
    sizes = [2**20, 10, 3 * 2**20, 5 * 2**20, 2**21, 2**21, 0, 2**19, *[2**20] * 6, 7]
    ids = [f"n{n:02}" for n in range(len(sizes))]
    items = [Item(id_, bytes(size)) for id_, size in zip(ids, sizes, strict=True)]
    pair.run("configure", "main", 1000.0, limits={"max_stalls": 2}, fail_handler=1)
    pair.run("dispatch", "main", 1000.0, items=items)
    now = 1000.0
    for round_ in range(2):
        pair.run("register", "main", now, client=f"w{round_}", lease=5, worker=b"")
        while pair.queues["main"].waiting:
            pair.run(
                "dequeue", "main", now, client=f"w{round_}", lease=5, limit=100,
                request=f"r{len(pair.steps)}", waiter="", waits=0, endings=[],
            )  # fmt: skip
        held = [Item(id_, bytes(2**20)) for id_ in ids[:3]]
        pair.run("dispatch", "main", now, items=held)
        pair.run("cancel", "main", now, ids=ids[3:5] * round_, running=True)
        now += 1000
        while pair.run("sweep", "main", now):
            pass
    records = list(pair.queues["main"].records["failed"])
    assert len(records) > 9
    while "later" in pair.run("requeue", "main", now, kind="failed", ids=records):
        pass
