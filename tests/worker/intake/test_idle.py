"""An idle worker costs next to nothing, and starts a job at once. See also `benchmarks/idle.py`.

The worker idles while the other worker tests run: its calls come in bursts, so that less than a
minute would count too few or too many.
"""

from collections import Counter

from queasy import SyncClient
from tests.servers import wait_until
from tests.worker.idling import Idling

MINUTE = 60.0
# The requirement: commands a minute, and the share of one CPU.
COMMANDS, CPU = 60, 0.01
# Far below the interval of its safety poll, about a minute; far above the time of a wake-up.
WOKEN = 5.0


def test_idle_worker_of_twenty_queues_sends_less_than_a_command_a_second(
    idling: Idling,
) -> None:
    wait_until(lambda: idling.seconds > MINUTE + 1, "a minute has passed", 2 * MINUTE)
    cpu = idling.cpu()
    commands = idling.commands()
    minutes = idling.seconds / MINUTE
    print(f"\n  {len(commands) / minutes:.0f} commands a minute, {cpu:.2%} CPU")
    first = [" ".join(command.split()[:2]) for at, command in commands if at < MINUTE]
    assert len(first) < COMMANDS, Counter(first)
    assert len(commands) / minutes < COMMANDS
    assert cpu < CPU


def test_idle_worker_is_woken_for_a_job(idling: Idling) -> None:
    with SyncClient(idling.server.url, prefix="idle") as client:
        for name in ("crowd-0", "waits", "low"):
            client.queue(name).dispatch("quick", id=name)
            idling.fleet.journal.wait_for("end", id=name, seconds=WOKEN)
