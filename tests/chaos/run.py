"""Runs one scene, or several at the same time, and checks their histories."""

import logging
import math
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tests.chaos.archive import write_archive
from tests.chaos.checker import PROMISES, Verdict, check
from tests.chaos.figures import Figures, count
from tests.chaos.history import read_folder
from tests.chaos.scenes import Scene, start
from tests.servers import ServerKind

__all__ = ["prepare", "print_violations", "run", "run_beside"]


def prepare() -> None:
    """Set up logging and signals of a process that runs scenes."""
    logging.getLogger("queasy").setLevel(logging.ERROR)  # warnings are caused by our own faults
    # An ordinary exit, so that all other processes are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def run(
    scene: Scene,
    kind: ServerKind,
    seed: str,
    seconds: float = math.inf,
    keep: Path | None = None,
    most: float = math.inf,
) -> Figures:
    """Run one scene and check its history: faults for so many seconds, but `most` at most."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="queasy-chaos-", dir=keep))
    length = f"{seconds:g} s of faults" if most == math.inf else f"{most} faults"
    print(f"{scene.name} on {kind}, seed {seed}: {length}", flush=True)
    began = time.monotonic()
    with start(scene, kind, folder, seed, seconds) as system:
        system.inject(scene.faults, scene.rate, seconds, most)
        final, drained = system.finish(durable=scene.durability == "replicated")
    events = list(read_folder(folder))
    if keep:
        write_archive(folder / f"{scene.name}-{seed}.history.xz", events, final)
    verdict = check(events, final)
    found = count(scene.name, seed, events, verdict, time.monotonic() - began)
    print(
        f"  {scene.name}: {found.counts['dispatches accepted']} dispatches accepted, "
        f"{found.counts['runs']} runs, "
        f"{found.process_kills} processes and {found.server_kills} servers killed, "
        f"{sum(found.faults.values())} faults, drained in {drained:.0f} s: "
        f"{'every promise kept' if verdict.kept else 'PROMISES BROKEN'}",
        flush=True,
    )
    print_violations(verdict)
    if verdict.kept and keep is None:
        shutil.rmtree(folder)
    else:
        print(f"  histories: {folder}")
    return found


def print_violations(verdict: Verdict) -> None:
    for name, evidence in verdict.violations.items():
        if evidence:
            print(f"  {len(evidence)} {PROMISES[name]}:")
            print("".join(f"    {line}\n" for line in evidence[:10]), end="", flush=True)


def run_beside(
    scenes: Sequence[Scene], kinds: Sequence[ServerKind], seed: str, most: int, keep: Path | None
) -> Iterator[tuple[int, Figures]]:
    """Run scenes at the same time, each until `most` faults were injected and all jobs have ended.

    Yields the figures of each system, with the number of its scene.
    """
    seeds, spawn = Random(seed), multiprocessing.get_context("spawn")
    results: list[tuple[int, Connection]] = []
    for number, scene in enumerate(scenes):
        for share in range(scene.systems):
            faults = len(range(share, most, scene.systems))  # an equal share, give or take one
            kind, own_seed = kinds[len(results) % len(kinds)], str(seeds.randrange(10**9))
            ours, theirs = spawn.Pipe()
            spawn.Process(
                target=_run_one, args=(theirs, scene, kind, own_seed, faults, keep), daemon=True
            ).start()
            theirs.close()
            results.append((number, ours))
    for number, result in results:
        try:
            yield number, result.recv()
        except EOFError:
            sys.exit(f"{scenes[number].name} ended without a verdict")


def _run_one(
    result: Connection, scene: Scene, kind: ServerKind, seed: str, most: int, keep: Path | None
) -> None:
    """Run one system in this process, and send its figures."""
    prepare()
    result.send(run(scene, kind, seed, keep=keep, most=most))
