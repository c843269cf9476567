"""Breaks Queasy, and checks its promises: `python -m tests.chaos`.

Every run prints a seed; `--scene S --seed N` asks for the same again, as far as real processes
can be asked. Histories are kept when a promise is broken, or with `--keep`; `--check FILE` checks
one of those again.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random, SystemRandom

from tests.chaos.archive import read_archive, write_archive
from tests.chaos.checker import PROMISES, Verdict, check
from tests.chaos.history import read_folder
from tests.chaos.report import Figures, figures, markdown
from tests.chaos.scenes import SCENES, Scene, play
from tests.servers import ServerKind, available_kinds


def run(
    scene: Scene,
    kind: ServerKind,
    seed: str,
    seconds: float,
    keep: Path | None = None,
) -> Figures:
    """One scene, from start to verdict."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="queasy-chaos-", dir=keep))
    print(f"{scene.name} on {kind}, seed {seed}: ", end="", flush=True)
    began = time.monotonic()
    with play(scene, kind, folder, seed, seconds) as world:
        world.harm(scene.faults, scene.rate, seconds)
        aftermath, drained = world.finish(durable=scene.durability == "replicated")
    events = list(read_folder(folder))
    if keep:
        write_archive(folder / f"{scene.name}-{seed}.history.xz", events, aftermath)
    verdict = check(events, aftermath)
    found = figures(scene.name, seed, events, verdict, time.monotonic() - began)
    print(
        f"{found.counts['accepted']} accepted, {found.counts['runs']} runs, "
        f"{found.process_kills} processes and {found.server_kills} servers killed, "
        f"{sum(found.faults.values())} faults, drained in {drained:.0f} s: "
        f"{'every promise kept' if verdict.kept else 'BROKEN'}",
        flush=True,
    )
    _show(verdict)
    if verdict.kept and keep is None:
        shutil.rmtree(folder)
    else:
        print(f"  histories: {folder}")
    return found


def _show(verdict: Verdict) -> None:
    for name, evidence in verdict.broken.items():
        if evidence:
            print(f"  {len(evidence)} {PROMISES[name]}:")
            print("".join(f"    {line}\n" for line in evidence[:10]), end="", flush=True)


def check_again(path: Path) -> int:
    """A history that was kept."""
    events, aftermath = read_archive(path)
    verdict = check(events, aftermath)
    scene, _, seed = path.name.removesuffix(".history.xz").rpartition("-")
    print("\n".join(markdown(figures(scene, seed, events, verdict, 0.0))))
    _show(verdict)
    return 0 if verdict.kept else 1


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--scene", choices=[*SCENES], action="append", help="default: all")
    parser.add_argument("--seed", help="of the first run; others follow from it")
    parser.add_argument("--seconds", type=float, default=30.0, help="of faults in each run")
    parser.add_argument("--hours", type=float, help="again and again for so long")
    parser.add_argument("--rate", type=float, default=1.0, help="so many times the jobs")
    parser.add_argument("--faults", type=float, default=1.0, help="so many times the faults")
    parser.add_argument("--server", choices=[*ServerKind], help="default: each in turn")
    parser.add_argument("--keep", type=Path, help="a folder for all histories")
    parser.add_argument("--check", type=Path, help="a history that was kept; nothing is run")
    parser.add_argument("--report", type=Path, help="a file for the figures, as Markdown")
    options = parser.parse_args()
    if options.check:
        return check_again(options.check)
    logging.getLogger("queasy").setLevel(logging.ERROR)  # what is wrong is our own doing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and everybody else is ended, too
    kinds = [ServerKind(options.server)] if options.server else available_kinds()
    for kind in set(ServerKind) - set(available_kinds()):
        print(f"{kind}: NOT TESTED, it is not installed")
    seed = options.seed or str(SystemRandom().randrange(10**9))
    seeds = Random(seed)
    total, began, count = Figures(), time.monotonic(), 0
    turn = 0
    while True:
        for index, scene in enumerate(options.scene or SCENES):
            of_run = seed if count == 0 else str(seeds.randrange(10**9))
            kind = kinds[(turn + index) % len(kinds)]
            hastened = SCENES[scene].hastened(options.rate, options.faults)
            total.add(run(hastened, kind, of_run, options.seconds, options.keep))
            count += 1
            if options.report:
                options.report.write_text("\n".join(markdown(total)) + "\n")
        turn += 1
        if options.hours is None or time.monotonic() - began > options.hours * 3600:
            break
    print("\n".join(markdown(total)))
    return 1 if any(total.broken.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
