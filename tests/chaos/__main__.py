"""Injects faults into Queasy, and checks its promises: `python -m tests.chaos`.

Every run prints a seed. `--scene S --seed N` draws the same faults and jobs again; the timing of
real processes still differs. The history of a run is kept if a promise was broken, or with
`--keep`; `--check FILE` checks a kept or published history again.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom

from tests.chaos.archive import read_archive
from tests.chaos.checker import check
from tests.chaos.figures import Figures, count
from tests.chaos.report import markdown
from tests.chaos.run import prepare, print_violations, run, run_beside
from tests.chaos.scenes import SCENES
from tests.servers import ServerKind, available_kinds


def check_again(path: Path) -> int:
    """Check a history that was kept or published. Returns the exit status."""
    events, final = read_archive(path)
    verdict = check(events, final)
    scene, _, seed = path.name.removesuffix(".history.xz").rpartition("-")
    print("\n".join(markdown([count(scene, seed, events, verdict, 0.0)])))
    print_violations(verdict)
    return 0 if verdict.kept else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--scene", choices=[*SCENES], action="append", help="default: all")
    parser.add_argument("--seed", help="seed of the first run; those of the others follow from it")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of faults in each run")
    parser.add_argument(
        "--faults-of-each",
        type=int,
        metavar="N",
        help="run all scenes at the same time, until each had so many faults",
    )
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


def run_counted(options: argparse.Namespace) -> Iterator[tuple[int, Figures]]:
    """Run the scenes at the same time. Yields the number of each with its figures."""
    kinds = [ServerKind(options.server)] if options.server else available_kinds()
    seed = options.seed or str(SystemRandom().randrange(10**9))
    scenes = [
        SCENES[name].scaled(options.rate, options.faults) for name in options.scene or [*SCENES]
    ]
    return run_beside(scenes, kinds, seed, options.faults_of_each, options.keep)


def main() -> int:
    options = parse()
    if options.check:
        return check_again(options.check)
    prepare()
    for kind in set(ServerKind) - set(available_kinds()):
        print(f"{kind}: NOT TESTED, it is not installed")
    columns: list[Figures] = []
    for column, figures in run_counted(options) if options.faults_of_each else run_all(options):
        # Repetitions of a run by time are one column.
        if not columns or (options.hours is None and column == len(columns)):
            columns.append(Figures())
        columns[-1].add(figures)
        if options.report:
            options.report.write_text("\n".join(markdown(columns)) + "\n")
    print("\n" + "\n".join(markdown(columns)))
    return 1 if any(any(column.violations.values()) for column in columns) else 0


if __name__ == "__main__":
    sys.exit(main())
