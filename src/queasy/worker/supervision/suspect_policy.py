"""Which children take suspects: half of them, so that the others are there for everything else.

A suspect runs alone, and so waits until what runs in its process has ended. A child that lets it
go again, because that takes long, is relieved by one with less to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from queasy.worker.supervision.child_process import ChildProcess

__all__ = ["choose_takers"]


def choose_takers(children: Sequence[ChildProcess], processes: int) -> None:
    """Called again and again; each child reads in its table what it is."""
    for taker in [child for child in children if child.table.declined]:
        taker.table.declined = False
        passing = [child for child in children if child.table.passes and child.serving]
        relief = min(passing, key=_busy, default=taker)
        if _busy(relief) < _busy(taker):
            taker.table.passes, relief.table.passes = True, False
    missing = (processes + 1) // 2 - sum(not child.table.passes for child in children)
    passing = [child for child in children if child.table.passes]
    # One that has yet to start may be long about it, or never be there.
    passing.sort(key=lambda child: (not child.serving, _busy(child)))
    for child in passing[: max(0, missing)]:
        child.table.passes = False


def _busy(child: ChildProcess) -> int:
    return child.table.runs
