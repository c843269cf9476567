"""A look at the server when a client starts: can it serve, and will it keep what it takes?"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from queasy.errors import Unsupported
from queasy.store.route import Effect, Exchange, Route

__all__ = ["check_server"]

log = logging.getLogger("queasy")
OLDEST = (7, 0)


def check_server(route: Route) -> Generator[Effect, Any, None]:
    """Raises when the server is too old; warns of settings that lose jobs.

    A user without permission for INFO or CONFIG is not warned: the checks are a courtesy.
    """
    address = yield from route.locate(None)
    info_reply, save_reply = yield Exchange(address, (("INFO",), ("CONFIG", "GET", "save")))
    if isinstance(info_reply, Exception):
        return
    info = _read_info(info_reply)
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise Unsupported(
            f"{address} runs Redis {version}: Queasy needs Redis 7.0 or newer, or Valkey"
        )
    for warning in _warnings(info, save_reply):
        log.warning("%s: %s", address, warning)


def _read_info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value for name, _, value in pairs}


def _warnings(info: dict[str, str], save_reply: Any) -> list[str]:
    found: list[str] = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and info.get("maxmemory", "0") != "0":
        found.append(
            f"maxmemory-policy is {policy}: the server may throw jobs away when memory is short; "
            "set it to noeviction"
        )
    no_snapshots = isinstance(save_reply, list) and len(save_reply) == 2 and not save_reply[1]  # pyright: ignore[reportUnknownArgumentType]
    if info.get("aof_enabled") == "0" and no_snapshots:
        found.append(
            "no persistence: a restart of the server loses every job; set appendonly to yes"
        )
    return found
