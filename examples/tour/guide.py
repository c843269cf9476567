"""Runs the tour: starts the workers, plays each act, and checks the promises."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path

from rich.console import Console

from tour.acts import ACTS, Tour, WorkersEnded
from tour.app import client
from tour.journal import LOG
from tour.promises import Promise, promises
from tour.view import LiveView, View, draw, look, summary

PROCESSES = 2
WORKER = ["queasy", "worker", "tour.app:client", "--processes", str(PROCESSES), "--grace", "5"]
REFRESH = 0.25
ACT_TIMEOUT = 60.0  # seconds; the promises then show what is missing


async def guide(console: Console, picture: Path | None = None) -> int:
    """The exit code of the whole tour: 0 if every promise was kept."""
    view = (LiveView if console.is_terminal else View)(console, shlex.join(WORKER), list(ACTS))
    try:
        found = [*await take_tour(view), await no_process_left()]
    except WorkersEnded as problem:
        print(f"The tour stopped: {problem}\n{LOG.read_text()[-3000:]}")
        return 1
    summary(console, found)
    if picture is not None:
        draw(picture, view, found)
    if all(one.kept for one in found):
        return 0
    print(f"\nThe end of the workers' log:\n{LOG.read_text()[-3000:]}")
    return 1


async def take_tour(view: View) -> list[Promise]:
    async with client, workers() as supervisor:
        tour = Tour(supervisor, PROCESSES)
        with view:
            watching = asyncio.create_task(watch(view, supervisor.pid))
            try:
                await tour.started()
                for act in ACTS.values():
                    view.begin()
                    view.end(over=await in_time(act(tour)))
            finally:
                watching.cancel()
            view.show(await look(supervisor.pid))
        return await promises(tour)


async def in_time(act: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(ACT_TIMEOUT):
            await act
    except TimeoutError:
        return False
    return True


@contextlib.asynccontextmanager
async def workers() -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `queasy worker` in a process, as a person would, and stop it with SIGTERM."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with LOG.open("wb") as log:
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *WORKER,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield supervisor
    finally:
        with contextlib.suppress(ProcessLookupError):
            supervisor.terminate()
        await supervisor.wait()


async def watch(view: View, supervisor: int) -> None:
    while True:
        view.show(await look(supervisor))
        await asyncio.sleep(REFRESH)


async def no_process_left() -> Promise:
    """The embedded server stops after its last client, so its end shows that no client is left."""
    left = still_there()
    for _ in range(100):
        if left:
            await asyncio.sleep(0.1)
            left = still_there()
    seen = "all have ended, the server too" if not left else f"still there: {', '.join(left)}"
    return Promise("no process is left running", seen, not left)


def still_there() -> list[str]:
    """The processes in this folder: all of them on Linux, only the server elsewhere."""
    found = ["the server"] if Path(".queasy", "server.sock").exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            here = (process / "cwd").readlink().is_relative_to(Path.cwd())
            if here and process.name != str(os.getpid()):
                found.append((process / "cmdline").read_text().replace("\0", " ").strip())
    return found
