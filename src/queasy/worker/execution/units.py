"""Units of a worker's capacity, counted by kind of handler."""

from __future__ import annotations

import msgspec

__all__ = ["Units"]


class Units(msgspec.Struct, gc=False):
    """How many units async handlers and plain functions occupy."""

    awaited: int = 0
    plain: int = 0

    def add(self, units: int, *, is_async: bool) -> None:
        if is_async:
            self.awaited += units
        else:
            self.plain += units

    def of(self, *, is_async: bool) -> int:
        return self.awaited if is_async else self.plain

    @property
    def total(self) -> int:
        return self.awaited + self.plain
