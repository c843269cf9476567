"""Workloads that only Queasy runs, and the bare server as a reference."""

from benchmarks.ours import (
    bare,
    drains,
    endings,
    payloads,
    plain_cpu,
    queues,
    spread,
    start,
    wait,
    wakeup,
)

OURS = {
    "drains": drains.run,
    "endings": endings.run,
    "payloads": payloads.run,
    "bare": bare.run,
    "wakeup": wakeup.run,
    "start": start.run,
    "queues": queues.run,
    "spread": spread.run,
    "wait": wait.run,
    "plain_cpu": plain_cpu.run,
}
