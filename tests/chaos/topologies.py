"""The servers of a scene: a single server, a primary with Sentinel, or a cluster."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tests.announcements import Announcements, announcements_of
from tests.groups import SENTINEL_HASTE, Cluster, SentinelGroup, start_cluster, start_sentinel
from tests.servers import Server, ServerKind, Setting, start_server

# An old primary is demoted after four of these periods, as with the default of two seconds. Until
# then it accepts writes, and all of them are lost.
PERIODS = {**SENTINEL_HASTE, "PUBLISH-PERIOD": 1000}


@dataclass(frozen=True)
class Topology:
    url: str
    server: Server
    """The only server, or the first."""
    group: SentinelGroup | Cluster | None = None
    announced: Announcements | None = None
    """What the sentinels of the group announce."""


StartTopology = Callable[[ExitStack, ServerKind, Mapping[str, Setting]], Topology]


def single(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    server = stack.enter_context(start_server(kind, busy_reply_threshold=100, **settings))
    return Topology(server.url, server)


def sentinel(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    group = stack.enter_context(start_sentinel(kind, sentinels=3, periods=PERIODS, **settings))
    announced = stack.enter_context(announcements_of(group))
    return Topology(group.url, group.servers[0], group, announced)


def cluster(stack: ExitStack, kind: ServerKind, settings: Mapping[str, Setting]) -> Topology:
    group = stack.enter_context(start_cluster(kind, primaries=3, replicas=1, **settings))
    return Topology(group.url, group.nodes[0], group)
