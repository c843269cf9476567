"""Coalescing: which dispatches share a call, and what happens when one is cancelled."""

import asyncio
import base64
import subprocess
import sys
from typing import Any

import pytest

from queasy.errors import InvalidInput, Unanswered, Unreachable
from queasy.store import coalescing
from queasy.store.coalescing import CHUNK_BYTES, CHUNK_JOBS, SPLIT_ABOVE_JOBS, DispatchCoalescer
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from queasy.store.records import Dispatched, DispatchItem

COMMANDS = QueueCommands(QueueKeys("p", "q"))


class Calls:
    """Takes the place of the store: a test answers each call."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.numbers: list[tuple[str, int]] = []
        self._answers: list[asyncio.Future[Any]] = []
        self._came = asyncio.Event()
        self._at_once = False
        self.coalescer = DispatchCoalescer(self._call)

    async def _call(self, command: Command[list[Dispatched]]) -> list[Dispatched]:
        caller, number, *args = command.args
        self.numbers.append((str(caller), int(number)))
        ids = [str(id_) for id_ in args[::2]]
        self.sent.append(ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._came.set()
        if self._at_once:
            answer.set_result(None)
        await answer
        return command.read([b"created"] * len(ids))

    def dispatch(self, *ids: str, payload: bytes = b"1") -> list[asyncio.Task[Dispatched]]:
        async def dispatch(id_: str) -> Dispatched:
            return await self.coalescer.dispatch(COMMANDS, DispatchItem(id_, payload))

        return [asyncio.create_task(dispatch(id_), name=id_) for id_ in ids]

    async def answer(self, error: Exception | None = None) -> None:
        """Answers the call in flight, or the next one."""
        async with asyncio.timeout(5):
            while not (pending := self._pending()):
                self._came.clear()
                await self._came.wait()
        pending[0].set_exception(error) if error else pending[0].set_result(None)

    def answer_all(self) -> None:
        """Answers the call in flight, and all later ones at once."""
        self._at_once = True
        self.answer_pending()

    def answer_pending(self) -> None:
        for answer in self._pending():
            answer.set_result(None)

    def _pending(self) -> list[asyncio.Future[Any]]:
        return [answer for answer in self._answers if not answer.done()]

    def sender(self) -> asyncio.Task[Any]:
        """The sender task."""
        (task,) = (one for one in asyncio.all_tasks() if "_send_all" in repr(one.get_coro()))
        return task


async def settle() -> None:
    """Gives every task that can continue a few passes of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ends(tasks: list[asyncio.Task[Dispatched]]) -> list[str]:
    """The result of each dispatch: its status, or the name of the exception."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [one.status if isinstance(one, Dispatched) else type(one).__name__ for one in results]


async def test_a_single_dispatch_is_sent_at_once_and_without_a_task() -> None:
    calls = Calls()
    tasks = calls.dispatch("a")
    await asyncio.sleep(0)
    assert calls.sent == [["a"]]
    assert asyncio.all_tasks() == {asyncio.current_task(), *tasks}
    await calls.answer()
    assert await ends(tasks) == ["created"]


async def test_dispatches_made_during_a_call_share_the_next_call_in_order() -> None:
    calls = Calls()
    tasks = calls.dispatch("a", "b", "c")
    await settle()
    tasks += calls.dispatch("d")
    await settle()
    assert calls.sent == [["a"]]
    await calls.answer()
    await settle()
    tasks += calls.dispatch("e")
    await settle()
    assert calls.sent == [["a"], ["b", "c", "d"]]
    await calls.answer()
    await calls.answer()
    assert await ends(tasks) == ["created"] * 5
    assert calls.sent == [["a"], ["b", "c", "d"], ["e"]]


@pytest.mark.parametrize("gone", ["a", "b", "c", "d", "ab", "cd", "bd", "bcd", "abcd"])
@pytest.mark.parametrize("in_flight", [0, 1])
async def test_a_cancelled_dispatch_does_not_affect_the_others(gone: str, in_flight: int) -> None:
    calls = Calls()
    tasks = calls.dispatch(*"abcd")
    await settle()
    for _ in range(in_flight):  # a is answered: the others are in flight
        await calls.answer()
        await settle()
    for task in tasks:
        if task.get_name() in gone:
            task.cancel()
    await settle()
    calls.answer_all()
    expected = [
        "created" if id_ not in gone or (in_flight and id_ == "a") else "CancelledError"
        for id_ in "abcd"
    ]
    assert await ends(tasks) == expected
    sent = [id_ for call in calls.sent for id_ in call]
    assert sent == ["a", *(id_ for id_ in "bcd" if in_flight or id_ not in gone)]
    await asyncio.wait_for(calls.coalescer.wait_until_sent(), 5)
    last = calls.dispatch("last")
    assert await ends(last) == ["created"]


async def test_when_the_sender_is_cancelled_another_sends_the_rest() -> None:
    calls = Calls()
    tasks = calls.dispatch("a", "b", "c")
    await settle()
    await calls.answer()
    await settle()
    tasks += calls.dispatch("d", "e")
    await settle()
    calls.sender().cancel()
    await settle()
    await calls.answer()
    assert await ends(tasks) == ["created", "Unanswered", "Unanswered", "created", "created"]
    assert calls.sent == [["a"], ["b", "c"], ["d", "e"]], (
        "expected b and c never to be sent again: their jobs may have run"
    )


async def test_when_the_sender_is_cancelled_between_single_calls_another_sends_the_rest() -> None:
    calls = Calls()
    tasks = calls.dispatch(*"abcd")
    await settle()
    await calls.answer()
    await calls.answer(InvalidInput("one of them"))
    await settle()
    assert calls.sent[-1] == ["b"]
    calls.sender().cancel()
    await settle()
    await calls.answer()
    assert await ends(tasks) == ["created", "Unanswered", "created", "created"]
    assert calls.sent == [["a"], ["b", "c", "d"], ["b"], ["c", "d"]]


async def test_a_refused_dispatch_raises_and_the_others_are_put() -> None:
    calls = Calls()
    tasks = calls.dispatch(*"abcd")
    for problem in (None, InvalidInput("c"), None, InvalidInput("c"), None):
        await calls.answer(problem)
    assert await ends(tasks) == ["created", "created", "InvalidInput", "created"]


async def test_a_failed_call_raises_in_all_its_dispatches_and_the_next_are_sent() -> None:
    calls = Calls()
    tasks = calls.dispatch("a", "b", "c")
    await settle()
    await calls.answer(Unreachable("away"))
    await calls.answer(Unanswered("cut"))
    assert await ends(tasks) == ["Unreachable", "Unanswered", "Unanswered"]
    tasks = calls.dispatch("d")
    await calls.answer()
    assert await ends(tasks) == ["created"]


async def test_a_cancelled_call_has_a_lower_number_than_the_next() -> None:
    """The lower number lets the server refuse the call if it arrives after the next one."""
    calls = Calls()
    (given_up,) = calls.dispatch("a")
    await settle()
    given_up.cancel()
    await settle()
    tasks = calls.dispatch("a")
    await calls.answer()
    assert await ends(tasks) == ["created"]
    (first, one), (second, two) = calls.numbers
    assert first == second
    assert one < two


async def test_wait_until_sent_ends_when_all_dispatches_were_sent() -> None:
    calls = Calls()
    await calls.coalescer.wait_until_sent()
    tasks = calls.dispatch("a", "b")
    await settle()
    waiting = asyncio.create_task(calls.coalescer.wait_until_sent())
    for _ in tasks:
        await settle()
        assert not waiting.done()
        await calls.answer()
    await asyncio.wait_for(waiting, 5)
    assert await ends(tasks) == ["created"] * 2


async def test_wait_until_sent_does_not_wait_for_later_dispatches() -> None:
    """Bug: close() did not return while other tasks continued to dispatch."""
    calls = Calls()
    tasks = calls.dispatch("a", "b")
    await settle()
    waiting = asyncio.create_task(calls.coalescer.wait_until_sent())
    for id_ in "cd":  # another dispatch arrives before each answer
        await settle()
        assert not waiting.done()
        tasks += calls.dispatch(id_)
        await settle()
        await calls.answer()
    await asyncio.wait_for(waiting, 5)
    calls.answer_all()
    assert await ends(tasks) == ["created"] * 4


async def test_the_jobs_and_bytes_of_a_call_are_bounded() -> None:
    calls = Calls()
    tasks = calls.dispatch("first", *map(str, range(2 * CHUNK_JOBS + 1)))
    await settle()
    tasks += calls.dispatch("x", "y", "z", payload=bytes(CHUNK_BYTES // 2))
    for _ in range(5):
        await calls.answer()
    assert set(await ends(tasks)) == {"created"}
    assert list(map(len, calls.sent)) == [1, CHUNK_JOBS, CHUNK_JOBS, 2, 2]


async def test_where_calls_are_slow_the_first_dispatch_after_a_shared_call_waits_for_its_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalescing, "WAKE_UP_SECONDS", 0.0)
    calls = Calls()
    tasks = calls.dispatch("a", "b")
    for _ in range(2):
        await calls.answer()
    await ends(tasks)
    tasks = calls.dispatch("c", "d", "e")
    await calls.answer()
    assert await ends(tasks) == ["created"] * 3
    for id_ in "fgh":
        tasks = calls.dispatch(id_)
        await calls.answer()
        assert await ends(tasks) == ["created"]
    assert calls.sent == [["a"], ["b"], *(["c", "d", "e"], ["f"], ["g"], ["h"])]
    calls.dispatch("i")
    await asyncio.sleep(0)
    assert calls.sent[-1] == ["i"], (
        "expected it to be sent at once: the last dispatches came one at a time"
    )
    calls.answer_all()


async def test_many_callers_that_keep_returning_are_sent_in_halves_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalescing, "WAKE_UP_SECONDS", 1.0)
    calls, half = Calls(), SPLIT_ABOVE_JOBS
    left = iter(range(6 * half))

    async def dispatch_repeatedly() -> None:
        for number in left:
            await calls.dispatch(str(number))[0]

    callers = asyncio.gather(*(dispatch_repeatedly() for _ in range(2 * SPLIT_ABOVE_JOBS)))
    while not callers.done():
        await settle()
        calls.answer_pending()
    assert [id_ for call in calls.sent for id_ in call] == [
        str(n) for n in range(6 * SPLIT_ABOVE_JOBS)
    ]
    sizes = list(map(len, calls.sent))
    assert sizes == [
        1,
        2 * SPLIT_ABOVE_JOBS - 1,
        1,
        *[SPLIT_ABOVE_JOBS] * 3,
        SPLIT_ABOVE_JOBS - 1,
    ], "expected halves once the coalescer has seen callers return"


async def test_many_callers_that_do_not_return_share_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalescing, "WAKE_UP_SECONDS", 1.0)
    calls = Calls()
    for _ in range(3):
        tasks = calls.dispatch("first", *map(str, range(2 * SPLIT_ABOVE_JOBS)))
        for _ in range(2):
            await calls.answer()
        await ends(tasks)
    assert list(map(len, calls.sent)) == [1, 2 * SPLIT_ABOVE_JOBS] * 3


async def test_many_callers_share_a_call_that_takes_longer_than_waking_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalescing, "WAKE_UP_SECONDS", 0.0)
    calls = Calls()
    tasks = calls.dispatch("first", *map(str, range(2 * SPLIT_ABOVE_JOBS)))
    for _ in range(2):
        await calls.answer()
    await ends(tasks)
    assert list(map(len, calls.sent)) == [1, 2 * SPLIT_ABOVE_JOBS]


async def test_the_next_call_is_sent_before_the_callers_of_the_last_are_woken() -> None:
    calls = Calls()
    tasks = calls.dispatch("a", "b", "c")
    await calls.answer()
    await settle()
    tasks += calls.dispatch("d")
    await settle()
    sent_when_woken: list[int] = []
    tasks[1].add_done_callback(lambda _: sent_when_woken.append(len(calls.sent)))
    await calls.answer()
    await calls.answer()
    assert await ends(tasks) == ["created"] * 4
    assert sent_when_woken == [3]


FORKS = """
import os
from queasy.dispatch import new_id
mine = {new_id() for _ in range(3)}
read, write = os.pipe()
child = os.fork()
ids = [new_id() for _ in range(1000)]
os.write(write, " ".join(ids).encode())
if child:
    os.waitpid(child, 0)
    os.close(write)
    assert len(set(ids)) == 1000 and not mine & set(ids)
    with os.fdopen(read) as all_of_them:
        print(all_of_them.read(), end="")
else:
    os.write(write, b" ")
    os._exit(0)
"""


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    text = done.stdout.replace(" ", "")
    ids = {text[at : at + 12] for at in range(0, len(text), 12)}
    assert len(ids) == 2000
    assert all(len(base64.urlsafe_b64decode(id_)) == 9 for id_ in ids)
