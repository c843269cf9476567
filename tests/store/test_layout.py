"""Lua and Python agree on the bytes of a job's record: what one packs, the other reads."""

import math
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from queasy.job import JobError
from queasy.store import job_reader, records
from queasy.store.job_reader import JobReader
from queasy.store.records import pack_ending
from tests.servers import ServerKind, start_server
from tests.store.harness import START, Harness, load
from tests.store.timed import PREFIX, timed_source

# Says what Lua makes of an info, and packs the same values again.
LAYOUT = f"""
loader.register_function({{ function_name = '{PREFIX}layout', callback = function(_, argv)
  if not redis then
    redis, string, math, ipairs, tonumber, unpack, type = globals()
  end
  local raw = argv[1]
  local info = job.read_info(raw)
  return {{
    job.is_scheduled_info(raw) and 1 or 0, job.is_surely_not_suspect(raw) and 1 or 0,
    info and 1 or 0, info and cmsgpack.pack(info) or '',
  }}
end }})
"""
SPECIAL = [0.0, 1.0, 0.5, -1.0, START * 1000, 2.0**42, 2.0**53, 1e300, -1e300, 5e-324]
NOT_TIMES = [math.inf, -math.inf, math.nan]


@pytest.fixture(scope="module")
def layout(kind: ServerKind) -> Iterator[redis.Redis]:
    """A server of its own with a test build of the library."""
    with start_server(kind) as server, server.client(decode_responses=False) as client:
        load(client, timed_source() + LAYOUT)
        yield client


def lua_reads(connection: redis.Redis, raw: bytes) -> tuple[bool, bool, dict[str, Any] | None]:
    """Whether it is a scheduled info, surely not a suspect; and the info, if it can be read."""
    scheduled, not_suspect, fine, packed = connection.execute_command(
        "FCALL", f"{PREFIX}layout", 0, "", raw
    )
    return bool(scheduled), bool(not_suspect), msgspec.msgpack.decode(packed) if fine else None


def lua_constant(name: str) -> bytes:
    """A string constant of job.lua, with its escapes read."""
    found = re.search(rf"local {name} = '(.*)'", timed_source())
    assert found is not None
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1])), found[1]).encode("latin-1")


def python_reads(info: bytes) -> Any:
    return JobReader("q", "q", None).taken([b"a", b"7", b"1000", b"{}", info], "c")[0]


def test_the_constants_are_the_same() -> None:
    assert lua_constant("DISPATCHED_AT") + b"\xcb" == job_reader.SCHEDULED
    length = re.search(r"if #raw ~= (\d+) or string.find\(raw, SCHEDULED", timed_source())
    assert length is not None
    assert int(length[1]) == job_reader.SCHEDULED_BYTES
    assert lua_constant("DEFAULT_FLAGS").decode() == records.DEFAULT_FLAGS
    byte_of_the_exponent = re.search(r"string.byte\(raw, (\d+), (\d+)\)", timed_source())
    assert byte_of_the_exponent is not None
    assert int(byte_of_the_exponent[1]) == len(job_reader.SCHEDULED) + 1


def times(seed: int) -> list[float]:
    chance = random.Random(seed)
    return SPECIAL + [chance.uniform(0, 2**42) for _ in range(200)]


def test_lua_reads_a_scheduled_info_that_python_packs(layout: redis.Redis) -> None:
    for time in times(1):
        raw = msgspec.msgpack.encode({"dispatched_at": time})
        assert raw[: len(job_reader.SCHEDULED)] == job_reader.SCHEDULED
        assert len(raw) == job_reader.SCHEDULED_BYTES
        assert lua_reads(layout, raw) == (True, True, {"dispatched_at": time}), time
    for value in NOT_TIMES:
        raw = msgspec.msgpack.encode({"dispatched_at": value})
        assert lua_reads(layout, raw) == (False, False, None), value


def test_python_reads_a_scheduled_info_that_lua_packs(layout: redis.Redis) -> None:
    h = Harness(layout)
    chance = random.Random(2)
    for number in range(200):
        h.later(chance.choice([1, 0.5, 0.0001, chance.random(), chance.uniform(1, 1e6)]))
        h.dispatch(f"j{number}", after=5)
        info = layout.hget(h.keys.base + "info", f"j{number}")
        assert isinstance(info, bytes)
        packed_as_double = info.startswith(job_reader.SCHEDULED)
        # Lua packs a time of whole milliseconds as an integer; Python reads that the general way.
        assert packed_as_double == (msgspec.msgpack.decode(info)["dispatched_at"] % 1 != 0)
        assert lua_reads(layout, info)[0] == packed_as_double
        job, slow = python_reads(info), msgspec.msgpack.decode(info)
        assert job.dispatched_at_epoch == slow["dispatched_at"] / 1000
        assert job.dispatched_at_epoch == pytest.approx(h.time, abs=0.01)
    h.clear()


def random_info(chance: random.Random) -> dict[str, Any]:
    """Any of the fields that an info may have."""
    error = {"type": "ValueError", "message": "expected 1, got 2", "kind": "retriable"}
    fields: dict[str, Any] = {
        "dispatched_at": chance.uniform(0, 2**42),
        "retry_count": chance.choice([1, 127, 128, 70000, 2**40]),
        "stall_count": chance.randint(1, 300),
        "timeout_count": chance.randint(1, 300),
        "options": {"max_retries": chance.randint(0, 9), "timeout": chance.uniform(0, 1e6)},
        "error": {**error, "traceback": "x" * chance.choice([0, 31, 32, 255, 256, 70000])},
        "companions": chance.choice([0, 1, 500]),
        "origin": {"id": "a" * chance.randint(1, 40), "token": "17", "failed_at": 1.5},
    }
    return {name: value for name, value in fields.items() if chance.random() < 0.4}


@pytest.mark.parametrize("seed", range(3))
def test_an_info_survives_the_way_through_lua(layout: redis.Redis, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        info = random_info(chance) or {"companions": 0}
        raw = msgspec.msgpack.encode(info)
        scheduled, surely_not_suspect, read = lua_reads(layout, raw)
        assert read == info, (seed, info)
        assert scheduled == (set(info) == {"dispatched_at"}), (seed, info)
        assert not (surely_not_suspect and "companions" in info), (seed, info)
        job, again = python_reads(raw), python_reads(msgspec.msgpack.encode(read))
        assert job == again, (seed, info)
        assert job.readable
        assert (job.retry_count, job.companions) == (
            info.get("retry_count", 0),
            info.get("companions"),
        )


def test_an_error_that_python_packs_can_be_copied_into_a_record() -> None:
    """settle.lua copies an error that comes first and is a map of at most 15 fields."""
    error = JobError("ValueError", "no", "retriable", "line 1")
    alone, with_time = pack_ending("", error), pack_ending("+5000", error)
    assert alone.startswith(b"\x81\xa5error")
    assert 0x80 <= alone[7] <= 0x8F
    assert with_time == b"\x82" + alone[1:] + b"\xa4when\xa5+5000"
    assert "map > 143" in timed_source()
