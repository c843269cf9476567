"""The walk of a job in the documents names the files that a real job passes, in order."""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import queasy
from queasy import Client, SyncClient, SyncQueue
from queasy.store.library import PREFIX, source
from tests.servers import Server, available_kinds, start_server, wait_until

WALK = Path(__file__).parents[2] / "docs" / "internals" / "walk.md"
PACKAGE = Path(queasy.__file__).parent
SAMPLES = 20
BY_THE_TEST = {"passed", "counts"}
"""Server functions that only the test calls."""


def documented(title: str) -> list[str]:
    """The files of the numbered list below this heading, in order."""
    section = WALK.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. (?:\*\*)?`([\w/]+\.(?:py|lua))`", section, re.M)


def transforming() -> set[str]:
    """The files in bold: the job leaves them in another form."""
    return set(re.findall(r"\*\*`([\w/]+\.(?:py|lua))`\*\*", WALK.read_text()))


def of(language: str, files: list[str]) -> list[str]:
    return [file for file in files if file.endswith(f".{language}")]


# A build of the Lua library in which every function notes the file in which it is, and every
# registered function its name.

TRACE = f"""
local passed = {{}}
local loader = redis
local function traced_register(name, callback)
  local about = callback and {{ function_name = name, callback = callback }} or name
  local called = about.callback
  about.callback = function(...)
    passed[#passed + 1] = about.function_name
    return called(...)
  end
  return loader.register_function(about)
end
traced_register('{PREFIX}passed', function()
  local taken = passed
  passed = {{}}
  return taken
end)
"""


def traced_library() -> str:
    library = source()
    for path in sorted((PACKAGE / "store" / "lua").glob("*.lua")):
        text = path.read_text()
        assert text in library, f"{path.name} is not in the library as it is"
        library = library.replace(text, traced_text(text, f"store/lua/{path.name}"))
    head, _, body = library.partition("\n")
    return head + TRACE + body


def traced_text(text: str, file: str) -> str:
    note = rf"\g<0> passed[#passed + 1] = '{file}';"
    text = re.sub(r"\w+\.register_function\(", "traced_register(", text)
    return re.sub(r"\bfunction\b[ \w.:]*\([^)]*\)", note, text)


@pytest.fixture(scope="module")
def traced() -> Iterator[Server]:
    kinds = available_kinds()
    if not kinds:
        pytest.skip("no server: NOT TESTED")
    with start_server(kinds[0], appendonly=True) as server:
        server.call("FUNCTION", "LOAD", "REPLACE", traced_library())
        yield server


@pytest.fixture
async def client(traced: Server) -> AsyncIterator[Client]:
    async with Client(traced.url) as connected:
        yield connected


async def files_of(
    server: Server, step: Callable[[], Awaitable[Any]], *, without: set[str] = BY_THE_TEST
) -> list[str]:
    """The files that every sample of a step passes, in the order of the first call.

    What only some samples pass (a heartbeat, a timer) is left out.
    """
    samples = [await sample(server, step, without) for _ in range(SAMPLES)]
    always = set[str].intersection(*map(set, samples))
    orders = Counter(tuple(file for file in files if file in always) for files in samples)
    return list(orders.most_common(1)[0][0])  # a timer may have passed one of them before


async def sample(
    server: Server, step: Callable[[], Awaitable[Any]], without: set[str]
) -> list[str]:
    python: dict[str, None] = {}
    await asyncio.to_thread(lua_files, server, without)

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            python[path.relative_to(PACKAGE).as_posix()] = None

    sys.setprofile(note)  # of this thread only
    try:
        await step()
    finally:
        sys.setprofile(None)
    return [*python, *await asyncio.to_thread(lua_files, server, without)]


def lua_files(server: Server, without: set[str]) -> list[str]:
    """The files that the server passed since the last call of this, but for these functions."""
    noted = server.call("FCALL", f"{PREFIX}passed", 0)
    files: dict[str, None] = {}
    function = ""
    for is_function, words in groupby(noted, lambda word: word.startswith(PREFIX)):
        if is_function:
            function = list(words)[-1].removeprefix(PREFIX)
        elif function not in without:
            files |= dict.fromkeys(words)
    return list(files)


def dispatch_and_wait(queue: SyncQueue) -> None:
    """In another thread, which is not traced: until the worker waits for the next job."""
    queue.dispatch(1)
    wait_until(lambda: is_idle(queue), "the worker is idle again")


def is_idle(queue: SyncQueue) -> bool:
    counts = queue.counts()
    return not counts.waiting and not counts.active and bool(counts.waiters)


async def test_a_dispatch_passes_the_files_of_the_walk(traced: Server, client: Client) -> None:
    queue = client.queue("dispatched")
    await queue.dispatch(0)
    files = await files_of(traced, lambda: queue.dispatch(1))
    walk = documented("A dispatch")
    assert of("py", files) == of("py", walk)
    assert of("lua", files) == of("lua", walk)


async def test_a_run_passes_the_files_of_the_walk(traced: Server, client: Client) -> None:
    queue, runs = client.queue("run"), []

    @queue.handler
    async def handle(data: int) -> None:
        runs.append(data)

    worker = client.worker(signals=False)
    with SyncClient(traced.url) as elsewhere:
        same_queue = elsewhere.queue("run")

        async def step() -> None:
            await asyncio.to_thread(dispatch_and_wait, same_queue)
            await asyncio.sleep(0.02)  # the worker reads the server's last reply

        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            await step()
            files = await files_of(traced, step, without=BY_THE_TEST | {"put", "dispatch"})
            handed = await files_of(traced, step, without=BY_THE_TEST | {"dequeue", "bump"})
            worker.stop()
    assert len(runs) == 1 + 2 * SAMPLES
    walk = documented("A run")
    assert of("py", files) == of("py", walk)
    assert of("lua", files) == of("lua", walk)
    assert of("lua", handed) == documented("A hand-off")


def test_files_that_transform_the_job_are_in_a_walk_and_counted() -> None:
    marked, page = transforming(), WALK.read_text()
    walks = documented("A dispatch") + documented("A hand-off") + documented("A run")
    assert marked <= set(walks)
    inner = {file for file in marked if not file.startswith(("store/net/", "store/lua/"))}
    counts = re.search(r"(\d+) files transform the job; without .* the Lua, (\d+) do", page)
    assert counts is not None
    assert [int(count) for count in counts.groups()] == [len(marked), len(inner)]
    table = page.partition("| from | to | in |")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([\w/]+\.(?:py|lua))`", table)) == marked
