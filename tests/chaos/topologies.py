"""The servers of a scene: a single server, a primary with Sentinel, or a cluster."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tests.groups import Cluster, SentinelGroup, start_cluster, start_sentinel
from tests.servers import Server, ServerKind, Setting, start_server


@dataclass(frozen=True)
class Topology:
    url: str
    server: Server
    """The only server, or the first."""
    group: SentinelGroup | Cluster | None = None


StartTopology = Callable[[ExitStack, ServerKind, Mapping[str, Setting]], Topology]


def single(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    server = stack.enter_context(start_server(kind, busy_reply_threshold=100, **settings))
    return Topology(server.url, server)


def sentinel(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    group = stack.enter_context(start_sentinel(kind, sentinels=3, **settings))
    return Topology(group.url, group.servers[0], group)


def cluster(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    group = stack.enter_context(start_cluster(kind, primaries=3, replicas=1, **settings))
    return Topology(group.url, group.nodes[0], group)
