"""The published packages of other systems, installed by name where they are missing.

A package that cannot be installed (no node, no registry) is absent: its tests are skipped as NOT
TESTED. The folder is kept, and git ignores it.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / ".packages"
PEERS = Path(__file__).parent / "peers"
# For each command of an installation: together they end before the time limit of a test does.
SECONDS_TO_INSTALL = 35


class Absent(Exception):
    """Why a package is not there."""


@dataclass(frozen=True)
class Peer:
    """How to run a program that uses a package."""

    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts one of the roles of `peers/`. Its errors go to the output of the test."""
        return subprocess.Popen(
            [*self.command, *arguments], text=True, stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL, env={**os.environ, **self.environment},
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        """What a role prints before it ends."""
        with self.start(*arguments) as process:
            printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0, arguments
        return printed


def ours() -> Peer:
    """This package."""
    return Peer([sys.executable, str(PEERS / "ours.py")])


@functools.cache
def _python_package(name: str, version: str) -> Peer:
    folder = FOLDER / "python" / f"{name}-{version}"
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The package asks for any redis-py, and for the package `uuid`, which has a module of the same
    # name as the standard library and is never imported.
    _install(
        folder,
        [[sys.executable, "-m", "venv", str(folder)],
         [*pip, "redis>=7.4"], [*pip, "--no-deps", f"{name}=={version}"]],
    )  # fmt: skip
    return Peer([str(python), str(PEERS / "published.py")])


@functools.cache
def _npm_package(name: str, version: str) -> Peer:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Absent("node or npm is not installed")
    folder = FOLDER / "node" / f"{name.replace('/', '-')}-{version}"
    npm = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder)]
    _install(folder, [[*npm, f"{name}@{version}"]], files={"package.json": '{"private": true}'})
    return Peer(["node", str(PEERS / "published.mjs")], {"PACKAGES": str(folder)})


def _install(folder: Path, commands: list[list[str]], files: dict[str, str] | None = None) -> None:
    """Runs the commands once; a folder without `ready.json` is one where they failed."""
    ready = folder / "ready.json"
    if ready.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, text in (files or {}).items():
        (folder / file).write_text(text)
    for command in commands:
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=SECONDS_TO_INSTALL
            )
        except (OSError, subprocess.SubprocessError) as problem:
            raise Absent(f"cannot be installed: {getattr(problem, 'stderr', problem)}") from problem
    ready.write_text(json.dumps(commands))


PACKAGES: dict[str, Callable[[], Peer]] = {
    "redis-work-queue": lambda: _python_package("redis-work-queue", "0.1.5"),
    "@mevitae/redis-work-queue": lambda: _npm_package("@mevitae/redis-work-queue", "0.1.5"),
}


def peer(package: str) -> Peer:
    """A program that uses a package; skips the test if the package is absent."""
    found = _installed(package)
    if isinstance(found, Absent):
        return pytest.skip(f"{package}: {found}: NOT TESTED with it")
    return found


@functools.cache
def _installed(package: str) -> Peer | Absent:
    """Tried once: without a network, each attempt takes minutes."""
    try:
        return PACKAGES[package]()
    except Absent as why:
        return why
