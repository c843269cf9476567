"""The fault `fail_over`: what it excuses."""

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.chaos.faults.groups import REACTION, REPLICATION_LAG, fail_over
from tests.chaos.fleet import Fleet, Size
from tests.chaos.history import HistoryWriter, now
from tests.chaos.system import System
from tests.chaos.topologies import sentinel
from tests.servers import ServerKind
from tests.worker.fleet import ON_ONE_SERVER


def random_that_requests_a_failover() -> Random:
    kinds = ("failover", "kill", "pause")
    return Random(next(seed for seed in count() if Random(seed).choice(kinds) == "failover"))


@ON_ONE_SERVER
@pytest.mark.timeout(120)
def test_losses_at_a_primary_that_was_replaced_are_not_excused(
    kind: ServerKind, tmp_path: Path
) -> None:
    """Bug: losses were excused until the old primary was demoted, so the checker did not see that
    clients wrote to it until then.
    """
    with ExitStack() as stack:
        topology = sentinel(stack, kind, {})
        random = random_that_requests_a_failover()
        nothing = Fleet({}, tmp_path, random, Size(workers=0, producers=0, consumers=0))
        system = System(random, tmp_path, topology, nothing, HistoryWriter(tmp_path, "faults"))
        began = now()
        fail_over(system)
        settled = now()
        ((start, end),) = system.excused
        assert start == pytest.approx(began - REPLICATION_LAG, abs=0.1)
        assert end < settled - REACTION  # the old primary was a primary for seconds more
