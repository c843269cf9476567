"""What every dialect promises, over the private interface that a worker would use."""

import asyncio
from typing import Any

import pytest

from queasy import Client, InvalidOption, ProtocolError
from queasy.interop.dialect import VERBS, Counts, Dialect, Held, Verb
from queasy.interop.taking import take_one
from queasy.operation import run_operation
from tests.interop.dialects import ROWS, Row
from tests.servers import Server

LONG, SHORT = 60.0, 0.02


class Driver:
    """Runs the verbs of a dialect."""

    def __init__(self, dialect: Dialect, client: Client) -> None:
        self.dialect = dialect
        self._store = client._store

    async def put(self, id_: str, data: bytes) -> bool:
        return await self._store.run(self.dialect.put(id_, data))

    async def take(self, seconds: float = LONG, timeout: float | None = 0) -> Held | None:
        steps = take_one(self.dialect, self._store, seconds, timeout)
        return await run_operation(self._store, steps)

    async def taken(self, seconds: float = LONG) -> Held:
        held = await self.take(seconds, 10)
        assert held is not None
        return held

    async def run(self, verb: Verb, *args: Any) -> Any:
        return await self._store.run(getattr(self.dialect, verb)(*args))

    async def clean(self, *, deep: bool = False) -> int:
        return await run_operation(self._store, self.dialect.clean(deep=deep, settle=0))

    async def clean_until(self, count: int, *, deep: bool = False) -> None:
        """Cleans until so many items were returned: their leases end one by one."""
        async with asyncio.timeout(30):
            while count > 0:
                count -= await self.clean(deep=deep)
        assert count == 0

    async def counts(self) -> Counts:
        return await self.run("counts")

    def needs(self, *verbs: Verb) -> None:
        """Skips a test of verbs that the protocol does not have: see `test_verb_is_refused`."""
        if missing := [verb for verb in verbs if not self.dialect.has(verb)]:
            pytest.skip(f"{self.dialect.protocol} has no {', '.join(missing)}")


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> Row:
    return ROWS[request.param]


@pytest.fixture
async def queue(row: Row, client: Client, name: str) -> Driver:
    return Driver(row.make(name), client)


async def test_items_leave_in_the_order_they_came_with_the_same_bytes(queue: Driver) -> None:
    payloads = [b"first", bytes(range(256)), b"\xff\xfe not text \x00", b"last"]
    for number, data in enumerate(payloads):
        assert await queue.put(f"id-{number}", data)
    assert [(await queue.taken()).data for _ in payloads] == payloads
    assert await queue.take() is None


async def test_id_that_waits_or_is_held_is_not_added_again(row: Row, queue: Driver) -> None:
    if not row.has_ids:
        pytest.skip("items have no ids in this protocol")
    assert await queue.put("same", b"1")
    assert not await queue.put("same", b"2")
    held = await queue.taken()
    assert held.data == b"1"
    assert not await queue.put("same", b"3")
    assert await queue.run("finish", held)
    assert await queue.put("same", b"4")
    assert (await queue.taken()).data == b"4"


async def test_finish_is_true_for_exactly_one_caller(queue: Driver) -> None:
    await queue.put("a", b"1")
    held = await queue.taken()
    results = await asyncio.gather(*(queue.run("finish", held) for _ in range(10)))
    assert sorted(results) == [False] * 9 + [True]
    assert await queue.counts() == (0, 0)


async def test_counts_follow_an_item(queue: Driver) -> None:
    assert await queue.counts() == (0, 0)
    await queue.put("a", b"1")
    await queue.put("b", b"2")
    assert await queue.counts() == (2, 0)
    held = await queue.taken()
    assert await queue.counts() == (1, 1)
    await queue.run("finish", held)
    assert await queue.counts() == (1, 0)


async def test_waiting_take_gets_an_item_that_comes_later(queue: Driver) -> None:
    waiting = [asyncio.create_task(queue.take(timeout=30)) for _ in range(3)]
    for number in range(3):
        await queue.put(f"id-{number}", b"%d" % number)
    held = await asyncio.gather(*waiting)
    assert sorted(one.data for one in held if one) == [b"0", b"1", b"2"]


async def test_take_that_is_cancelled_leaves_the_item_to_others(queue: Driver) -> None:
    for number in range(20):
        waiting = asyncio.create_task(queue.take(timeout=30))
        await asyncio.sleep(0)
        await queue.put(f"id-{number}", b"data")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if waiting.cancelled():
            assert await queue.run("finish", await queue.taken())
        else:
            assert await queue.run("finish", waiting.result())


async def test_item_of_a_dead_holder_is_returned_by_a_clean(queue: Driver) -> None:
    queue.needs("clean")
    await queue.put("a", b"1")
    await queue.put("b", b"2")
    await queue.taken(SHORT)
    await queue.clean_until(1)
    assert await queue.counts() == (2, 0)
    assert {(await queue.taken()).data for _ in range(2)} == {b"1", b"2"}


async def test_clean_leaves_held_and_waiting_items_alone(queue: Driver) -> None:
    queue.needs("clean")
    await queue.put("a", b"1")
    await queue.put("b", b"2")
    held = await queue.taken()
    for deep in (False, True):
        assert await queue.clean(deep=deep) == 0
    assert await queue.counts() == (1, 1)
    assert await queue.run("finish", held)


async def test_item_that_is_kept_alive_is_not_returned(queue: Driver) -> None:
    queue.needs("keep_alive", "clean")
    await queue.put("a", b"1")
    held = await queue.taken(LONG)
    assert await queue.run("keep_alive", held, SHORT)
    await queue.clean_until(1)
    assert not await queue.run("keep_alive", held, LONG)
    again = await queue.taken(1)
    assert await queue.run("keep_alive", again, LONG)
    assert not await queue.run("keep_alive", held, LONG)
    assert await queue.clean() == 0
    assert await queue.run("finish", again)


async def test_item_given_back_is_the_next_and_a_retry_is_the_last(queue: Driver) -> None:
    queue.needs("give_back", "retry")
    for id_ in ("a", "b", "c"):
        await queue.put(id_, id_.encode())
    first = await queue.taken()
    assert await queue.run("give_back", first)
    assert not await queue.run("give_back", first)
    again = await queue.taken()
    assert again.data == b"a"
    assert await queue.run("retry", again)
    assert not await queue.run("retry", again)
    assert [(await queue.taken()).data for _ in range(3)] == [b"b", b"c", b"a"]


async def test_late_holder_does_not_put_back_what_another_holds(queue: Driver) -> None:
    queue.needs("give_back", "retry", "clean")
    await queue.put("a", b"1")
    late = await queue.taken(SHORT)
    await queue.clean_until(1)
    held = await queue.taken()
    for verb in ("give_back", "retry"):
        assert not await queue.run(verb, late)
    assert await queue.counts() == (0, 1)
    assert await queue.run("finish", held)


async def test_verb_that_the_protocol_lacks_is_refused_with_a_reason(queue: Driver) -> None:
    arguments: dict[Verb, tuple[Any, ...]] = {
        "put": ("a", b""), "take": (1.0,), "keep_alive": (None, 1.0), "finish": (None,),
        "retry": (None,), "fail": (None, "why"), "give_back": (None,), "clean": (), "counts": (),
    }  # fmt: skip
    for verb in VERBS:
        if not queue.dialect.has(verb):
            options = {"deep": False, "settle": 0.0} if verb == "clean" else {}
            with pytest.raises(InvalidOption, match=queue.dialect.protocol):
                getattr(queue.dialect, verb)(*arguments[verb], **options)


async def test_keys_of_another_type_are_refused_and_nothing_is_written(
    row: Row, queue: Driver, name: str, server: Server
) -> None:
    if row.moves_wrong_types:
        pytest.skip("a key of another type is moved aside: see tests/interop/node/test_defects.py")

    with server.client(decode_responses=False) as admin:
        await queue.put("a", b"1")
        for key in admin.keys(f"{name}:*"):
            admin.delete(key)
            admin.set(key, "no list")
        before = {key: admin.dump(key) for key in admin.keys(f"{name}:*")}
        with pytest.raises(ProtocolError, match="expected a list"):
            await queue.put("b", b"2")
        with pytest.raises(ProtocolError, match="expected a list"):
            await queue.take()
        assert {key: admin.dump(key) for key in admin.keys(f"{name}:*")} == before
