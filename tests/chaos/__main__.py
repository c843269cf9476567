"""Injects faults into Queasy, and checks its promises: `python -m tests.chaos`.

Every run prints a seed. `--scene S --seed N` draws the same faults and jobs again; the timing of
real processes still differs. The history of a run is kept if a promise was broken, or with
`--keep`; `--check FILE` checks a kept or published history again.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom

from tests.chaos.archive import read_archive, write_archive
from tests.chaos.checker import PROMISES, Verdict, check
from tests.chaos.figures import Figures, count
from tests.chaos.history import read_folder
from tests.chaos.report import markdown
from tests.chaos.scenes import SCENES, Scene, start
from tests.servers import ServerKind, available_kinds


def run(
    scene: Scene,
    kind: ServerKind,
    seed: str,
    seconds: float,
    keep: Path | None = None,
) -> Figures:
    """Run one scene and check its history."""
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="queasy-chaos-", dir=keep))
    print(f"{scene.name} on {kind}, seed {seed}: {seconds:g} s of faults", flush=True)
    began = time.monotonic()
    with start(scene, kind, folder, seed, seconds) as system:
        system.inject(scene.faults, scene.rate, seconds)
        final, drained = system.finish(durable=scene.durability == "replicated")
    events = list(read_folder(folder))
    if keep:
        write_archive(folder / f"{scene.name}-{seed}.history.xz", events, final)
    verdict = check(events, final)
    found = count(scene.name, seed, events, verdict, time.monotonic() - began)
    print(
        f"  {found.counts['dispatches accepted']} dispatches accepted, "
        f"{found.counts['runs']} runs, "
        f"{found.process_kills} processes and {found.server_kills} servers killed, "
        f"{sum(found.faults.values())} faults, drained in {drained:.0f} s: "
        f"{'every promise kept' if verdict.kept else 'PROMISES BROKEN'}",
        flush=True,
    )
    _print_violations(verdict)
    if verdict.kept and keep is None:
        shutil.rmtree(folder)
    else:
        print(f"  histories: {folder}")
    return found


def _print_violations(verdict: Verdict) -> None:
    for name, evidence in verdict.violations.items():
        if evidence:
            print(f"  {len(evidence)} {PROMISES[name]}:")
            print("".join(f"    {line}\n" for line in evidence[:10]), end="", flush=True)


def check_again(path: Path) -> int:
    """Check a history that was kept or published. Returns the exit status."""
    events, final = read_archive(path)
    verdict = check(events, final)
    scene, _, seed = path.name.removesuffix(".history.xz").rpartition("-")
    print("\n".join(markdown([count(scene, seed, events, verdict, 0.0)])))
    _print_violations(verdict)
    return 0 if verdict.kept else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--scene", choices=[*SCENES], action="append", help="default: all")
    parser.add_argument("--seed", help="seed of the first run; those of the others follow from it")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of faults in each run")
    parser.add_argument("--repeat", type=int, default=1, help="run all scenes this many times")
    parser.add_argument("--hours", type=float, help="repeat all scenes for this many hours")
    parser.add_argument("--rate", type=float, default=1.0, help="factor for the number of jobs")
    parser.add_argument("--faults", type=float, default=1.0, help="factor for the number of faults")
    parser.add_argument("--server", choices=[*ServerKind], help="default: each in turn")
    parser.add_argument("--keep", type=Path, help="folder in which to keep all histories")
    parser.add_argument("--check", type=Path, help="check this history; nothing is run")
    parser.add_argument("--report", type=Path, help="write the report to this file, as Markdown")
    return parser.parse_args()


def run_all(options: argparse.Namespace) -> Iterator[tuple[int, Figures]]:
    """Run the scenes. Yields the number of the repetition with the figures of each run."""
    kinds = [ServerKind(options.server)] if options.server else available_kinds()
    seed = options.seed or str(SystemRandom().randrange(10**9))
    seeds = Random(seed)
    began = time.monotonic()
    scenes = options.scene or [*SCENES]
    repetition = 0
    while True:
        for index, name in enumerate(scenes):
            minutes = (time.monotonic() - began) / 60
            of = f"{options.hours * 60:.0f} minutes" if options.hours else f"{options.repeat}"
            passed = f"{minutes:.0f} of {of}" if options.hours else f"{repetition + 1} of {of}"
            print(f"[{passed}, scene {index + 1} of {len(scenes)}] ", end="")
            scene = SCENES[name].scaled(options.rate, options.faults)
            kind = kinds[(repetition + index) % len(kinds)]
            yield repetition, run(scene, kind, seed, options.seconds, options.keep)
            seed = str(seeds.randrange(10**9))
        repetition += 1
        if options.hours is not None:
            if time.monotonic() - began > options.hours * 3600:
                return
        elif repetition >= options.repeat:
            return


def main() -> int:
    options = parse()
    if options.check:
        return check_again(options.check)
    logging.getLogger("queasy").setLevel(logging.ERROR)  # warnings are caused by our own faults
    # An ordinary exit, so that all other processes are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for kind in set(ServerKind) - set(available_kinds()):
        print(f"{kind}: NOT TESTED, it is not installed")
    columns: list[Figures] = []
    for repetition, figures in run_all(options):
        # Repetitions of a run by time are one column.
        if not columns or (options.hours is None and repetition == len(columns)):
            columns.append(Figures())
        columns[-1].add(figures)
        if options.report:
            options.report.write_text("\n".join(markdown(columns)) + "\n")
    print("\n" + "\n".join(markdown(columns)))
    return 1 if any(any(column.violations.values()) for column in columns) else 0


if __name__ == "__main__":
    sys.exit(main())
