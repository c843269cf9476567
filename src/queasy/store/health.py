"""Inspects the server: whether it can serve, and whether its settings may lose jobs.

A client logs the findings when it connects; `Client.health()` inspects the server at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from queasy.errors import QueasyError, Unsupported
from queasy.store import library
from queasy.store.net.faults import PROBLEMS, Lost, diagnose
from queasy.store.net.server_errors import ResponseError
from queasy.store.net.topology import Effect, Exchange, HangUp, Route

__all__ = ["Health", "QueueHealth", "check_server", "inspect_server"]

log = logging.getLogger("queasy")
OLDEST_VERSION = (7, 0)
# A worker process uses up to 5 connections, its supervisor as many, a busy client up to 50.
MIN_MAXCLIENTS = 200
# A shorter timeout of the server closes connections of an idle worker between two of its calls.
MIN_IDLE_TIMEOUT_SECONDS = 90
STALE_CONNECTION_SECONDS = 0.5
SETTINGS = (
    "save", "stop-writes-on-bgsave-error", "appendfsync", "timeout", "min-replicas-to-write",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """Whether the jobs of one queue are given out."""

    name: str
    workers: int
    """How many workers serve it."""
    due: int
    """How many jobs are due."""
    paused: bool
    problem: str = ""
    """Why its jobs do not run: it is paused, or has due jobs and no worker. Empty if they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of an inspection of the server, and of queues on it."""

    address: str = ""
    """The address, without a password."""
    reachable: bool
    """It answers, and can carry out a call."""
    problem: str = ""
    """Why it cannot take jobs: unreachable, a replica, memory or disk full ..."""
    server: str = ""
    """redis or valkey; empty, like the next two, when the user may not read it."""
    version: str = ""
    role: str = ""
    """primary or replica."""
    revision: int | None = None
    """The revision of the library; None if there is none yet: the first call loads it."""
    round_trip: float = 0.0
    """Seconds until it answered."""
    warnings: tuple[str, ...] = ()
    """Other problems, and settings that may lose jobs; each says what to do."""
    queues: tuple[QueueHealth, ...] = ()
    """The queues that were asked about, and those of their fail queues that are in use. Empty if
    the server has a problem."""

    @property
    def ready(self) -> bool:
        """Whether the server can take jobs."""
        return not self.problem

    @property
    def problems(self) -> tuple[str, ...]:
        """The problem of the server, or those of the queues; empty if there are none."""
        every = (self.problem, *(queue.problem for queue in self.queues))
        return tuple(problem for problem in every if problem)


def check_server(route: Route) -> Generator[Effect, Any, None]:
    """Raises when the server is too old; warns of settings that lose jobs.

    Without permission for INFO or CONFIG there are no warnings: these checks are optional.
    """
    address = yield from route.locate(None)
    info, settings = _read((yield Exchange(address, _queries())))
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST_VERSION:
        raise Unsupported(
            f"{address} runs Redis {version}: Queasy needs Redis 7.0 or newer, or Valkey"
        )
    for warning in [*_obstacles(info, settings), *_warnings(route, info, settings)]:
        log.warning("%s: %s", address, warning)


def inspect_server(route: Route) -> Generator[Effect, Any, Health]:
    """Inspects the server once. It does not wait, write or raise."""
    began = time.monotonic()
    try:
        address = yield from route.locate(None)
        began = time.monotonic()
        version = ("FCALL_RO", library.PREFIX + "version", "0")
        exchange = Exchange(address, (version, *_queries()))
        try:
            found, *replies = yield exchange
        except Lost:
            if time.monotonic() - began > STALE_CONNECTION_SECONDS:
                raise
            yield HangUp(address)  # the server had closed an idle connection: try a new one
            found, *replies = yield exchange
    except PROBLEMS as problem:
        route.forget()
        error = diagnose(problem, str(route.target), "inspecting").error
        return _unreachable(route, error, began)
    except QueasyError as problem:  # no embedded server, or not a cluster
        return _unreachable(route, problem, began)
    seconds = time.monotonic() - began
    missing = isinstance(found, ResponseError) and "Function not found" in str(found)
    info, settings = _read(replies)
    problem = ""
    if isinstance(found, Exception) and not missing:
        problem = str(diagnose(found, str(address), "inspecting").error)
    obstacles = _obstacles(info, settings)
    return Health(
        address=str(route.target),
        reachable=not problem,
        problem=problem or next(iter(obstacles), ""),
        server="" if not info else "valkey" if "valkey_version" in info else "redis",
        version=info.get("valkey_version") or info.get("redis_version", ""),
        role={"master": "primary", "slave": "replica"}.get(info.get("role", ""), ""),
        revision=None if isinstance(found, Exception) else int(found[1]),
        round_trip=seconds,
        warnings=(*obstacles[0 if problem else 1 :], *_warnings(route, info, settings)),
    )


def _unreachable(route: Route, problem: QueasyError, began: float) -> Health:
    return Health(
        address=str(route.target),
        reachable=False,
        problem=str(problem),
        round_trip=time.monotonic() - began,
    )


def _queries() -> tuple[tuple[str, ...], ...]:
    return (("INFO",), ("CONFIG", "GET", *SETTINGS))


def _read(replies: list[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The replies to INFO and CONFIG GET; empty where the user lacks the permission."""
    info: dict[str, str] = {}
    settings: dict[str, str] = {}
    info_reply, config_reply = replies
    if isinstance(info_reply, bytes):
        lines = info_reply.decode("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines if ":" in line)
        info = {name: value for name, _, value in pairs}
    if not isinstance(config_reply, Exception):
        words = [word.decode("utf-8", "replace") for word in config_reply]
        settings = dict(zip(words[::2], words[1::2], strict=False))
    return info, settings


def _obstacles(info: dict[str, str], settings: dict[str, str]) -> list[str]:
    """Why the server takes no jobs at present."""
    found: list[str] = []
    if info.get("role") == "slave":
        found.append(
            "this is a replica, which takes no jobs; point the URL at the "
            "primary, or use redis+sentinel:// or redis+cluster://, which find it"
        )
    limit = int(info.get("maxmemory", 0))
    evicts = info.get("maxmemory_policy", "noeviction") != "noeviction"
    if limit and not evicts and int(info.get("used_memory", 0)) > limit:
        found.append(
            "its memory is full: dispatches are refused until the queues drain; raise maxmemory"
        )
    if _disk_failed(info) and _refuses_writes(info, settings):
        found.append("it cannot write to its disk, and refuses writes; free its disk, see its log")
    return found


def _disk_failed(info: dict[str, str]) -> bool:
    return "err" in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status"))


def _refuses_writes(info: dict[str, str], settings: dict[str, str]) -> bool:
    by_snapshots = settings.get("save") and settings.get("stop-writes-on-bgsave-error") == "yes"
    return bool(by_snapshots) or info.get("aof_last_write_status") == "err"


def _warnings(route: Route, info: dict[str, str], settings: dict[str, str]) -> list[str]:
    found = [
        *_of_cluster(route, info),
        *_of_sentinel(route, settings),
        *_of_memory(info),
        *_of_disk(info, settings),
    ]
    clients = int(info.get("maxclients", MIN_MAXCLIENTS))
    if clients < MIN_MAXCLIENTS:
        found.append(
            f"maxclients is {clients}: a worker process needs up to 5 connections, and a client up "
            f"to 50; set it to {MIN_MAXCLIENTS} or more"
        )
    timeout = int(settings.get("timeout", 0))
    if 0 < timeout < MIN_IDLE_TIMEOUT_SECONDS:
        found.append(
            f"timeout is {timeout}: the server closes connections that are idle for {timeout} "
            "seconds, and a call sent at that moment has to be repeated; set it to 0, or to "
            f"{MIN_IDLE_TIMEOUT_SECONDS} or more"
        )
    return found


def _of_cluster(route: Route, info: dict[str, str]) -> list[str]:
    if info.get("cluster_enabled") == "1" and not route.has_slots:
        return [
            "this is a node of a cluster: queues that are on other nodes cannot be reached; use "
            "redis+cluster:// instead of redis://"
        ]
    return []


def _of_sentinel(route: Route, settings: dict[str, str]) -> list[str]:
    behind_sentinel = route.is_group and not route.has_slots
    if behind_sentinel and settings.get("min-replicas-to-write") == "0":
        return [
            "min-replicas-to-write is 0: after a failover the old primary still accepts jobs for a "
            "while, and they are lost; set min-replicas-to-write and min-replicas-max-lag to 1 on "
            "every server"
        ]
    return []


def _of_memory(info: dict[str, str]) -> list[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if int(info.get("maxmemory", 0)) and policy != "noeviction":
        return [
            f"maxmemory-policy is {policy}: the server may delete jobs when memory is full; "
            "set it to noeviction"
        ]
    return []


def _of_disk(info: dict[str, str], settings: dict[str, str]) -> list[str]:
    found: list[str] = []
    if _disk_failed(info) and not _refuses_writes(info, settings):
        found.append("it could not write a snapshot to its disk; free its disk, see its log")
    if info.get("aof_enabled") == "1":
        if settings.get("appendfsync") == "no":
            found.append(
                "appendfsync is no: a crash of its machine loses the last half minute, or more; "
                "set it to everysec (which loses up to a second) or always"
            )
    elif "save" in settings and "aof_enabled" in info:
        found.append(
            "no append-only file: a crash of the server loses every job since the last snapshot; "
            "set appendonly to yes"
            if settings["save"]
            else "no persistence: a restart of the server loses every job; set appendonly to yes"
        )
    return found
