"""What is going on, while it goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queasy import Queue
from tour.app import QUEUES, client
from tour.journal import LOG
from tour.promises import Promise, stats

WIDTH = 92
BAR = 10


@dataclass(frozen=True, slots=True)
class QueueRow:
    waiting: int
    active: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    pid: int
    load: float
    runs: Counter[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything shown, as the server had it at one moment."""

    at: float
    queues: dict[Queue, QueueRow]
    workers: list[WorkerRow]
    warning: str
    """The last of the supervisor's."""


async def look(supervisor: int) -> Snapshot:
    rows: dict[Queue, QueueRow] = {}
    for queue in QUEUES:
        counts, totals = await queue.counts(), await stats(queue)
        waiting, done = counts.waiting + counts.blocked, totals.get("finished", 0)
        rows[queue] = QueueRow(waiting, counts.active, done, counts.failed)
    workers = [
        # Async jobs are packed more tightly than their size says, if they prove to be light.
        WorkerRow(one.pid, min(1.0, one.load), Counter(job.queue for job in one.jobs))
        for one in await client.workers()
    ]
    return Snapshot(time.monotonic(), rows, workers, last_warning(supervisor))


def last_warning(supervisor: int) -> str:
    """A line of the log is: time process level logger: event."""
    told = [line.split(" ", 4) for line in LOG.read_text().splitlines()]
    warnings = [words[4:] for words in told if words[1:3] == [str(supervisor), "WARNING"]]
    return f"supervisor: {''.join(warnings[-1])}" if warnings else ""


class View:
    """Told what goes on. This one prints a line for it; `LiveView` draws."""

    def __init__(self, console: Console, command: str, acts: list[str]) -> None:
        self.console = console
        self.command = command
        self.acts = acts
        self.took: list[tuple[float, bool]] = []
        """Of each act so far, and whether it came to its end."""
        self.began = self.act_began = time.monotonic()

    def __enter__(self) -> View:
        self.tell(self.command)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        self.act_began = time.monotonic()

    def end(self, *, over: bool) -> None:
        took, act = time.monotonic() - self.act_began, self.acts[len(self.took)]
        self.took.append((took, over))
        self.tell(f"{took:6.1f} s  {act}{'' if over else ': not over!'}")

    def tell(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        pass


class LiveView(View):
    """One screen: the queues, the workers, the acts."""

    def __init__(self, console: Console, command: str, acts: list[str]) -> None:
        super().__init__(console, command, acts)
        self._live = Live(console=console, auto_refresh=False)
        self._recent: deque[Snapshot] = deque(maxlen=6)

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, line: str) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        self._recent.append(snapshot)
        warning = Text(snapshot.warning, "italic red", no_wrap=True, overflow="ellipsis")
        parts = (self._title(), self._queues(), Text(), self._workers(), warning, self._acts())
        self._live.update(Constrain(Group(*parts), WIDTH), refresh=True)

    def _title(self) -> Table:
        line = Table.grid(expand=True)
        line.add_column(no_wrap=True)
        line.add_column(justify="right")
        elapsed = f"{time.monotonic() - self.began:.1f} s"
        line.add_row(Text.assemble(("$ ", "dim"), (self.command, "bold cyan")), elapsed)
        return line

    def _queues(self) -> Table:
        table = Table(box=None, expand=True, header_style="dim", padding=(0, 1, 0, 0))
        table.add_column("queue", style="bold", no_wrap=True)
        table.add_column("", style="dim", no_wrap=True, ratio=1)
        for name in ("waiting", "active", "done", "failed", "a second"):
            table.add_column(name, justify="right", min_width=7, no_wrap=True)
        first, last = self._recent[0], self._recent[-1]
        for queue, row in last.queues.items():
            rate = (row.done - first.queues[queue].done) / max(last.at - first.at, 0.001)
            table.add_row(
                queue.name,
                QUEUES[queue],
                shown(row.waiting, "yellow"),
                shown(row.active, "cyan"),
                shown(row.done, "green"),
                shown(row.failed, "red"),
                shown(round(rate), "bold"),
            )
        return table

    def _workers(self) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("worker", style="bold", no_wrap=True, min_width=12)
        table.add_column("load", no_wrap=True)
        table.add_column("runs", justify="right", no_wrap=True, min_width=5)
        table.add_column("", style="dim", no_wrap=True)
        for worker in self._recent[-1].workers:
            full = round(worker.load * BAR)
            load = Text.assemble(("█" * full, "cyan"), ("░" * (BAR - full), "dim"))
            what = ", ".join(f"{count} {queue}" for queue, count in worker.runs.most_common())
            table.add_row(f"pid {worker.pid}", load, shown(worker.runs.total(), "cyan"), what)
        return table

    def _acts(self) -> Text:
        lines = Text()
        for number, act in enumerate(self.acts):
            if number < len(self.took):
                took, over = self.took[number]
                lines.append(f" ✓ {act}" if over else f" ✗ {act}", "green" if over else "bold red")
                lines.append(f"  {took:.1f} s\n", "dim")
            elif number == len(self.took):
                lines.append(f" ▶ {act}\n", "bold")
            else:
                lines.append(f"   {act}\n", "dim")
        lines.rstrip()
        return lines


def shown(number: int, style: str) -> Text:
    return Text(f"{number:,}", style) if number else Text("·", "dim")


def summary(console: Console, promises: list[Promise]) -> None:
    width = max(len(one.promised) for one in promises)
    console.print()
    for one in promises:
        word = ("ok", "bold green") if one.kept else ("NO", "bold red")
        line = Text.assemble("  ", word, f"  {one.promised:{width}}  ", (one.seen, "dim"))
        console.print(line, soft_wrap=True)
    broken = sum(not one.kept for one in promises)
    console.print()
    if broken:
        console.print(f"{broken} of {len(promises)} promises were broken!", style="bold red")
    else:
        console.print("Every promise was kept.", style="bold green")
