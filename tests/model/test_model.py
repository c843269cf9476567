"""The server against the model: random steps, the whole state compared after each.

pytest tests/model/test_model.py -s --steps 1000000    on every server there is, with progress
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
STEPS_OF_A_CROWD = 1 / 40
EXAMPLES_OF_A_ROUND = 100  # Hypothesis remembers all it did, so a long run is many short ones
REPORT_EVERY = 10.0


@pytest.fixture
def first_seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--model-seed", None)
    return random.SystemRandom().randrange(2**32) if given is None else given


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--steps", STEPS)


class Progress:
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
        print(f"{self.what}: {self.done:,} of {self.goal:,} steps, {rate:.0f} a second", flush=True)


def run(machine: type[QueueMachine], pair: Pair, goal: int, first_seed: int, length: int) -> None:
    """Rounds of examples until that many steps were taken and compared."""
    progress = Progress(f"{machine.__name__}, seed {first_seed}", goal)
    print(f"\n{progress.what}: begins")
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
        examples = min(EXAMPLES_OF_A_ROUND, 1 + (goal - progress.done) // length)
        try:
            run_state_machine_as_test(seeded, settings=settings(profile, max_examples=examples))
        except BaseException:
            again = f"--model-seed {first_seed + round_} --steps {max(1, (examples - 1) * length)}"
            print(f"after {progress.done} steps; again: {again}", file=sys.stderr)
            raise
        round_ += 1
    progress.report()


@pytest.mark.timeout(0)
def test_the_server_does_what_the_model_says(pair: Pair, steps: int, first_seed: int) -> None:
    run(QueueMachine, pair, steps, first_seed, length=60)


@pytest.mark.timeout(0)
def test_a_crowd_of_leases_is_swept_as_the_model_says(
    pair: Pair, steps: int, first_seed: int
) -> None:
    run(CrowdMachine, pair, max(1, int(steps * STEPS_OF_A_CROWD)), first_seed, length=20)


def test_large_payloads_are_handled_in_part_as_the_model_says(pair: Pair) -> None:
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


def test_one_sweep_ends_ten_clients(pair: Pair) -> None:
    for number in range(11):
        pair.run("register", "main", 1000.0, client=f"w{number}", lease=5, worker=b"")
    for left in (1, 0):
        pair.run("sweep", "main", 2000.0)
        assert len(pair.queues["main"].clients) == left
