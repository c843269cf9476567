"""What a crew works on: one server, a primary under Sentinel, or a cluster."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tests.groups import Cluster, SentinelGroup, start_cluster, start_sentinel
from tests.servers import Server, ServerKind, Setting, start_server


@dataclass(frozen=True)
class Stage:
    url: str
    server: Server
    """The only one, or the first."""
    group: SentinelGroup | Cluster | None = None


MakeStage = Callable[[ExitStack, ServerKind, Mapping[str, Setting]], Stage]


def alone(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Stage:
    server = stack.enter_context(start_server(kind, busy_reply_threshold=100, **settings))
    return Stage(server.url, server)


def sentinel(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Stage:
    group = stack.enter_context(start_sentinel(kind, sentinels=3, **settings))
    return Stage(group.url, group.servers[0], group)


def cluster(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Stage:
    group = stack.enter_context(start_cluster(kind, primaries=3, replicas=1, **settings))
    return Stage(group.url, group.nodes[0], group)
