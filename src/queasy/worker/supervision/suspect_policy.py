"""Which children take suspects: half of them, so that the others run everything else.

A suspect runs alone: its child first waits until its other runs have ended. If they take too long
to end, the child releases the suspect, and a child with fewer runs takes suspects instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queasy.worker.supervision.child_process import ChildProcess

__all__ = ["Candidate", "choose_suspect_takers", "share_out_suspects"]


class Candidate(msgspec.Struct, frozen=True):
    """A child that may be chosen."""

    takes_suspects: bool
    declined: bool
    """It released a suspect because its own runs took too long to end."""
    has_served: bool
    runs: int


def choose_suspect_takers(candidates: Sequence[Candidate], processes: int) -> list[bool]:
    """For each child, whether it should take suspects from now on."""
    takes = [candidate.takes_suspects for candidate in candidates]

    def skipping() -> list[int]:
        return [index for index, taking in enumerate(takes) if not taking]

    def runs(index: int) -> int:
        return candidates[index].runs

    for taker, candidate in enumerate(candidates):
        if candidate.declined:
            serving = [index for index in skipping() if candidates[index].has_served]
            relief = min(serving, key=runs, default=taker)
            if runs(relief) < runs(taker):
                takes[taker], takes[relief] = False, True
    missing = (processes + 1) // 2 - sum(takes)
    # A child that has not started yet may take long to start, or never do.
    best = sorted(skipping(), key=lambda index: (not candidates[index].has_served, runs(index)))
    for index in best[: max(0, missing)]:
        takes[index] = True
    return takes


def share_out_suspects(children: Sequence[ChildProcess], processes: int) -> None:
    """Writes into the table of each child whether it takes suspects; called again and again."""
    candidates = [_candidate(child) for child in children]
    chosen = choose_suspect_takers(candidates, processes)
    for child, candidate, takes in zip(children, candidates, chosen, strict=True):
        if candidate.declined:
            child.table.clear_declined()
        if takes and not candidate.takes_suspects:
            child.table.take_suspects()
        elif candidate.takes_suspects and not takes:
            child.table.skip_suspects()


def _candidate(child: ChildProcess) -> Candidate:
    table = child.table
    return Candidate(
        not table.skips_suspects, table.declined, child.state.has_served, table.run_count
    )
