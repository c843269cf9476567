"""The workloads that every competitor runs. Each returns its metrics by name."""

from functools import partial

from benchmarks.workloads import burst, cpu, drain, enqueue, pickup, plain, sleep, spin

WORKLOADS = {
    "drain": drain.run,
    "drain2": partial(drain.run, processes=2),
    "enqueue": enqueue.run,
    "pickup": pickup.run,
    "burst": burst.run,
    "cpu": cpu.run,
    "plain": plain.run,
    "sleep": sleep.run,
    "spin": spin.run,
}
# Two worker processes and the server share two cores, so these are never pinned.
TWO_PROCESSES = {"drain2", "cpu", "plain_cpu", "spin"}
