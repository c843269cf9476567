"""Each runs one competitor once, and answers figures by name."""

from functools import partial

from benchmarks.workloads import burst, cpu, drain, enqueue, pickup

WORKLOADS = {
    "drain": drain.run,
    "drain2": partial(drain.run, processes=2),
    "enqueue": enqueue.run,
    "pickup": pickup.run,
    "burst": burst.run,
    "cpu": cpu.run,
}
TWO_PROCESSES = {"drain2", "cpu"}  # they and the server share two cores: never pinned
