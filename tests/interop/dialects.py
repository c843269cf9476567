"""The dialects that the conformance suite runs over: a new dialect adds a row."""

from collections.abc import Callable
from dataclasses import dataclass

from queasy.interop.dialect import Dialect
from queasy.interop.node_protocol import NodeDialect
from queasy.interop.workqueue_protocol import WorkQueueDialect


@dataclass(frozen=True)
class Row:
    """A dialect under test, and what its protocol cannot promise."""

    make: Callable[[str], Dialect]
    has_ids: bool = True
    """Whether items have ids, so that adding one twice is noticed."""
    moves_wrong_types: bool = False
    """Whether a key of the wrong type is moved aside; otherwise calls that need it are refused."""


ROWS: dict[str, Row] = {
    "workqueue": Row(WorkQueueDialect),
    "workqueue, published": Row(lambda name: WorkQueueDialect(name, "published")),
    # A dispatch updates the job of its id, and does not say whether there was one.
    "node": Row(NodeDialect, has_ids=False, moves_wrong_types=True),
}
