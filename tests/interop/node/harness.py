"""A queue of Queasy for Node, driven function by function at logical times, and audited."""

import itertools
from dataclasses import dataclass
from typing import Any

import redis

_numbers = itertools.count(1)
LATER = 100


@dataclass
class Audit:
    """What the keys of a queue say: which ids wait, which are blocked, which client holds which."""

    scores: dict[str, float]
    held: dict[str, set[str]]
    waiting_jobs: set[str]
    active_jobs: set[str]
    expiry: dict[str, float]
    broken: set[str]

    def problems(self) -> list[str]:
        """The invariants that do not hold."""
        ids = [id_ for client in self.held for id_ in self.held[client]]
        blocked = {id_ for id_, score in self.scores.items() if score < 0}
        found = {
            "waiting without a record": self.scores.keys() - self.waiting_jobs,
            "a waiting record without a score": self.waiting_jobs - self.scores.keys(),
            "held without a record": set(ids) - self.active_jobs,
            "active and not held": self.active_jobs - set(ids),
            "held twice": {id_ for id_ in ids if ids.count(id_) > 1},
            "due while active": self.active_jobs & self.scores.keys() - blocked,
            "blocked by nothing": blocked - self.active_jobs,
            "holds and never expires": self.held.keys() - self.expiry.keys(),
        }
        return [f"{problem}: {sorted(about)}" for problem, about in found.items() if about]


class NodeQueue:
    """The functions, called as a client in any language calls them."""

    def __init__(self, connection: redis.Redis, name: str = "") -> None:
        self.redis = connection
        self.key = f"{{{name or f'node-{next(_numbers)}'}}}"
        self.fail_key = f"{self.key}-fail"

    def call(self, function: str, *args: Any, keys: tuple[str, ...] = ()) -> Any:
        keys = keys or (self.key,)
        return self.redis.fcall(f"queasy_{function}", len(keys), *keys, *args)

    @property
    def fail_queue(self) -> "NodeQueue":
        return NodeQueue(self.redis, self.key[1:-1])._named(self.fail_key)

    def _named(self, key: str) -> "NodeQueue":
        self.key = key
        return self

    def dispatch(
        self,
        id_: str = "a",
        run_at: float | str = 0,
        data: str = "1",
        update_data: bool = True,
        update_run_at: bool | str = True,
        reset_counts: bool | None = None,
    ) -> Any:
        resets = update_data if reset_counts is None else reset_counts
        flags = [str(flag).lower() for flag in (update_data, resets)]
        moves = update_run_at if isinstance(update_run_at, str) else str(update_run_at).lower()
        return self.call("dispatch", id_, run_at, data, flags[0], moves, flags[1])

    def dequeue(
        self, client: str = "c", now: float = 0, expiry: float | None = None, limit: int = 10
    ) -> list[dict[str, str]]:
        expires = now + LATER if expiry is None else expiry
        jobs = self.call("dequeue", client, now, expires, limit)
        return [one if isinstance(one, dict) else _pairs(one) for one in jobs]

    def ids(self, client: str = "c", now: float = 0, **more: Any) -> list[str]:
        return [job["id"] for job in self.dequeue(client, now, **more)]

    def bump(self, client: str = "c", now: float = 0, expiry: float | None = None) -> int:
        return self.call("bump", client, now, now + LATER if expiry is None else expiry)

    def cancel(self, id_: str = "a") -> int:
        return self.call("cancel", id_)

    def finish(self, id_: str = "a", client: str = "c", now: float = 0) -> int:
        return self.call("finish", id_, client, now)

    def retry(self, id_: str = "a", client: str = "c", at: float = 0, now: float = 0) -> int:
        return self.call("retry", id_, client, at, now)

    def fail(
        self,
        id_: str = "a",
        client: str = "c",
        fail_id: str = "f",
        data: str = "[]",
        now: float = 0,
    ) -> int:
        return self.call("fail", id_, client, fail_id, data, now, keys=(self.key, self.fail_key))

    # Inspecting

    def score(self, id_: str = "a") -> float | None:
        return self.redis.zscore(self.key, id_)

    def waiting(self, id_: str = "a") -> dict[str, str]:
        return self.redis.hgetall(f"{self.key}:waiting_job:{id_}")

    def active(self, id_: str = "a") -> dict[str, str]:
        return self.redis.hgetall(f"{self.key}:active_job:{id_}")

    def keys(self) -> dict[str, Any]:
        """The contents of all keys of this queue, by what follows its name."""
        reads = {
            "hash": self.redis.hgetall,
            "set": self.redis.smembers,
            "zset": lambda key: dict(self.redis.zrange(key, 0, -1, withscores=True)),
            "string": self.redis.get,
            "list": lambda key: self.redis.lrange(key, 0, -1),
        }
        found = [self.key, *self.redis.keys(f"{self.key}:*")]
        kinds = {key: self.redis.type(key) for key in found}
        return {
            key.removeprefix(self.key): reads[kind](key)
            for key, kind in kinds.items()
            if kind != "none"
        }

    def audit(self) -> Audit:
        keys = self.keys()

        def named(kind: str) -> dict[str, Any]:
            start = f":{kind}:"
            return {key.removeprefix(start): keys[key] for key in keys if key.startswith(start)}

        return Audit(
            keys.get("", {}),
            named("checkouts"),
            set(named("waiting_job")),
            set(named("active_job")),
            keys.get(":expiry", {}),
            set(named("broken")),
        )

    def clear(self) -> None:
        for key in (self.key, self.fail_key):
            if found := [key, *self.redis.keys(f"{key}:*")]:
                self.redis.delete(*found)


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
