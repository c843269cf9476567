"""A library that is measured: its script, its packages and its checkout."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.bench import Bench, RunFailed
from benchmarks.harness.bench_server import BenchServer
from benchmarks.harness.environment import PEERS, interpreter, script_metadata

__all__ = ["ROOT", "Bench", "Competitor", "RunFailed", "competitors", "other_code"]

ROOT = Path(__file__).parents[2]


class Competitor:
    """One library, run by its script in `benchmarks/peers/`.

    `checkout` is the checkout that Queasy is imported from; peers have packages of their own.
    """

    def __init__(self, script: Path, checkout: Path = ROOT, **environment: str) -> None:
        metadata = script_metadata(script)
        self.script = script
        self.checkout = checkout
        self.about: dict[str, Any] = metadata["tool"]["bench"]
        self.name: str = self.about["name"]
        self.dependencies: list[str] = metadata["dependencies"]
        self._environment = environment
        self._interpreter: list[str] = []

    def variant(self, **environment: str) -> "Competitor":
        """The same library with other settings."""
        other = Competitor(self.script, self.checkout, **environment)
        other.set_up()
        return other

    def set_up(self) -> None:
        """Install the packages of the script where they are missing."""
        self._interpreter = interpreter(self.script, self.dependencies)

    def supports(self, workload: str) -> bool:
        return workload not in self.about.get("unsupported", {})

    def jobs(self, scale: float) -> int:
        """Number of jobs that make a drain of a few seconds."""
        return max(int(self.about["jobs"] * scale), 20)

    def enqueues(self, scale: float) -> int:
        return max(int(self.about.get("enqueues", 5000) * scale), 20)

    @contextmanager
    def on(self, server: BenchServer, pinned: bool = False) -> Generator["Bench"]:
        """A bench with an empty server and an empty folder; both are emptied again at the end."""
        folder = Path(tempfile.mkdtemp(prefix="queasy-bench-"))
        server.flush()
        server.pin(pinned)
        try:
            yield Bench(self.name, self.command, self.environment, server, folder, pinned)
        finally:
            server.pin(False)
            server.flush()
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, *arguments: object) -> list[str]:
        return [*self._interpreter, str(self.script), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its processes.

        Queasy is imported from the checkout, and so are its benchmarks. A peer sees only the
        packages of its own environment.
        """
        found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if not self.dependencies:
            found["PYTHONPATH"] = os.pathsep.join([str(self.checkout / "src"), str(self.checkout)])
        return found | self._environment


def competitors(names: list[str]) -> list[Competitor]:
    """Queasy and the peers with these names (`with_<name>.py`); `all` stands for every peer."""
    found = {script.stem.removeprefix("with_"): script for script in sorted(PEERS.glob("with_*"))}
    chosen = [name for name in found if name != "queasy"] if "all" in names else names
    if unknown := set(chosen) - set(found):
        raise ValueError(f"expected peers among {', '.join(found)}, got {', '.join(unknown)}")
    return [Competitor(found[name]) for name in ["queasy", *chosen]]


def other_code(checkout: Path) -> Competitor:
    """Queasy as it is in another checkout, measured by the scripts of this one."""
    checkout = checkout.resolve()
    if not (checkout / "src" / "queasy" / "__init__.py").is_file():
        raise ValueError(f"expected a checkout with src/queasy in it, got {checkout}")
    found = Competitor(PEERS / "with_queasy.py", checkout)
    found.name = f"Queasy at {checkout.name}"
    return found
