"""A build of the library in which the N-th command fails, and the checks afterwards."""

import re
from dataclasses import dataclass
from typing import Any

import redis

from queasy.outcomes import Finish
from queasy.store.command import Command
from queasy.store.commands import QueueCommands
from queasy.store.keys import QueueKeys
from tests.store.harness import Dump, Harness, endings_of, read_all
from tests.store.timed import PREFIX, timed_source, timed_words

# After HLEN of a hash, the server does not refuse an HDEL of it later in the same call: no other
# client runs in between, and a lack of memory or replicas only refuses the first write of a call.
SHIM = """
local shim = { n = 0, at = 0, fired = 0, hashes = {} }
local function fires(command, key)
  if command == 'HDEL' and shim.hashes[key] then
    return nil
  end
  shim.n = shim.n + 1
  if shim.n == shim.at then
    shim.fired = 1
    return { err = 'INJECTED at call ' .. shim.n }
  end
  shim.hashes[key or ''] = command == 'HLEN' or shim.hashes[key or '']
end
function shim.call(...)
  local fault = fires(...)
  if fault then
    error(fault)
  end
  return redis.call(...)
end
function shim.pcall(...)
  return fires(...) or redis.pcall(...)
end
redis.register_function('queasy_test_arm', function(_, args)
  shim.n, shim.fired, shim.at, shim.hashes = 0, 0, tonumber(args[1]), {}
  return shim.at
end)
redis.register_function('queasy_test_disarm', function()
  shim.at = 0
  return { shim.fired, shim.n }
end)
"""


def wrapped_source() -> str:
    """Every `redis.call` and `redis.pcall` goes through the shim."""
    shebang, _, text = timed_source().partition("\n")
    text, replaced = re.subn(r"\bredis\.(p?call)\b", r"shim.\1", text)
    assert replaced > 50, "the library no longer calls commands the way this expects"
    return f"{shebang}\n{SHIM}\n{text}"


def commands_in_the_library(connection: redis.Redis) -> list[str]:
    """Every upper case word in quotes that the server knows as a command."""
    known = {name.decode().upper() for name in connection.execute_command("COMMAND LIST")}
    names = known & set(re.findall(r"'([A-Z]{3,})'", timed_source()))
    assert {"HSET", "HDEL", "ZADD", "ZREM", "HMGET", "TIME"} <= names
    return sorted(names)


@dataclass(frozen=True)
class Seen:
    """The reply of a call and the state after it."""

    reply: Any
    fired: bool
    state: Dump

    @property
    def refused(self) -> bool:
        return isinstance(self.reply, Exception)


class Stage:
    """One scenario, with its state saved: one round trip restores it."""

    def __init__(self, harness: Harness, command: Command[Any]) -> None:
        self.h = harness
        self.redis = harness.redis
        self.command = command
        self._words = timed_words(command, harness.time)
        self.queues: tuple[QueueKeys, QueueKeys] = (harness.keys, harness.fail_keys)
        self._keys = [key for queue in self.queues for key in queue.all]
        pipeline = self.redis.pipeline(transaction=False)
        for key in self._keys:
            pipeline.dump(key)
        self._dumps = dict(zip(self._keys, pipeline.execute(), strict=True))
        self.before = self.state()

    def state(self) -> Dump:
        return read_all(self.redis, *self.queues)

    def restore(self) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.delete(*self._keys)
        for key, value in self._dumps.items():
            if value is not None:
                pipeline.restore(key, 0, value)
        pipeline.execute()

    def run(self, fault_at: int = 0) -> Seen:
        """Sends the command; its command number `fault_at` fails."""
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.execute_command("FCALL", f"{PREFIX}arm", 0, fault_at)
        pipeline.execute_command(*self._words)
        pipeline.execute_command("FCALL", f"{PREFIX}disarm", 0)
        _, reply, (fired, _) = pipeline.execute(raise_on_error=False)
        return Seen(reply, bool(fired), self.state())

    def run_as(self, other: redis.Redis) -> Seen:
        """Sends the command on another connection."""
        reply: Any
        try:
            reply = other.execute_command(*self._words)
        except redis.RedisError as error:
            reply = error
        return Seen(reply, fired=True, state=self.state())

    def drain(self) -> None:
        """Runs every job to its end: that must work whatever happened before."""
        h = self.h
        seconds, _ = h.redis.time()
        h.time = max(h.time, seconds) + 1_000_000.0
        for commands in (h.commands, h.fail_commands):
            h.call(commands.configure(paused=False))
            for client in h.call(commands.clients()):
                while h.call(commands.evict(client.id))[0] == "more":
                    pass
            _finish_all(h, commands)
            counts = h.call(commands.counts())
            assert (counts.waiting, counts.active, counts.blocked) == (0, 0, 0)


def _finish_all(h: Harness, commands: QueueCommands) -> None:
    while jobs := h.call(commands.dequeue("~drain", lease=30, limit=1000)).jobs:
        assert set(h.call(commands.settle(endings_of(jobs, Finish())))) == {"finished"}


def ids_in(state: Dump) -> set[tuple[str, bytes]]:
    """The ids of all jobs: in the queue, its records, and the fail queue."""
    places = {":data": "q", ":failed": "q", ":broken": "q", "-fail:data": "fail"}
    return {(where, id_) for label, where in places.items() for id_ in state.get(label, {})}
