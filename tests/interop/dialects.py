"""The dialects that the conformance suite runs over: a new dialect adds a row."""

from collections.abc import Callable
from dataclasses import dataclass

from queasy.interop.dialect import Dialect
from queasy.interop.workqueue_protocol import WorkQueueDialect


@dataclass(frozen=True)
class Row:
    """A dialect under test, and what its protocol cannot promise."""

    make: Callable[[str], Dialect]
    has_ids: bool = True
    """Whether items have ids, so that adding one twice is noticed."""


ROWS: dict[str, Row] = {
    "workqueue": Row(WorkQueueDialect),
    "workqueue, published": Row(lambda name: WorkQueueDialect(name, "published")),
}
