"""Starts the workers, takes the tour act by act, and looks at what came of it."""

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
from tour.view import LiveView, View, look, summary

PROCESSES = 2
WORKER = ["queasy", "worker", "tour.app:client", "--processes", str(PROCESSES), "--grace", "5"]
REFRESH = 0.25
PATIENCE = 60.0  # for one act; a promise that is not kept by then is broken


async def guide(console: Console) -> int:
    """The whole tour, and whether every promise was kept: an exit code."""
    try:
        kept = [*await take_tour(console), await nobody_left()]
    except WorkersEnded as problem:
        print(f"The workers could not go on: {problem}\n{LOG.read_text()[-3000:]}")
        return 1
    summary(console, kept)
    if all(one.kept for one in kept):
        return 0
    print(f"\nThe last words of the workers:\n{LOG.read_text()[-3000:]}")
    return 1


async def take_tour(console: Console) -> list[Promise]:
    view = (LiveView if console.is_terminal else View)(console, shlex.join(WORKER), list(ACTS))
    async with client, workers() as supervisor:
        tour = Tour(supervisor, PROCESSES)
        with view:
            watching = asyncio.create_task(watch(view, supervisor.pid))
            try:
                await tour.started()
                for act in ACTS.values():
                    view.begin()
                    view.end(over=await in_time(act(tour)))
                view.show(await look(supervisor.pid))
            finally:
                watching.cancel()
        return await promises(tour)


async def in_time(act: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            await act
    except TimeoutError:
        return False  # the promises will tell what is missing
    return True


@contextlib.asynccontextmanager
async def workers() -> AsyncGenerator[asyncio.subprocess.Process]:
    """`queasy worker`, as one would start it by hand; stopped as one would stop it."""
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


async def nobody_left() -> Promise:
    """The server too ends when nobody is connected; so once it has, nobody was."""
    left = still_there()
    for _ in range(100):
        if left:
            await asyncio.sleep(0.1)
            left = still_there()
    seen = "all have ended, the server too" if not left else f"still there: {', '.join(left)}"
    return Promise("no process is left behind", seen, not left)


def still_there() -> list[str]:
    """Who works in this folder, or below: on Linux all that do, elsewhere the server."""
    found = ["the server"] if Path(".queasy", "server.sock").exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            here = (process / "cwd").readlink().is_relative_to(Path.cwd())
            if here and process.name != str(os.getpid()):
                found.append((process / "cmdline").read_text().replace("\0", " ").strip())
    return found
