"""What the tour shows: a live screen in a terminal, plain lines elsewhere, an SVG on request."""

from __future__ import annotations

import io
import re
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from queasy import Queue
from tour.app import QUEUES, client
from tour.journal import LOG
from tour.promises import Promise, stats

WIDTH = 92
BAR = 10
CHARACTER = 12.2  # the width of one character in the SVG files of rich


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
    """Everything on the screen, as the server reported it at one time."""

    at: float
    queues: dict[Queue, QueueRow]
    workers: list[WorkerRow]
    warning: str
    """The newest warning in the supervisor's log."""


async def look(supervisor: int) -> Snapshot:
    rows: dict[Queue, QueueRow] = {}
    for queue in QUEUES:
        counts, totals = await queue.counts(), await stats(queue)
        waiting, done = counts.waiting + counts.blocked, totals.get("finished", 0)
        rows[queue] = QueueRow(waiting, counts.active, done, counts.failed)
    workers = [
        # The load can exceed 1: a worker runs more async jobs at once when they prove to be cheap.
        WorkerRow(one.pid, min(1.0, one.load), Counter(job.queue for job in one.jobs))
        for one in await client.workers()
    ]
    return Snapshot(time.monotonic(), rows, workers, last_warning(supervisor))


def last_warning(supervisor: int) -> str:
    """The newest warning. A line of the log is: time, process, level, logger, event."""
    lines = [line.split(" ", 4) for line in LOG.read_text().splitlines()]
    warnings = [words[4:] for words in lines if words[1:3] == [str(supervisor), "WARNING"]]
    return f"supervisor: {''.join(warnings[-1])}" if warnings else ""


class View:
    """The progress of the tour. This class prints a line for each act; `LiveView` draws."""

    def __init__(self, console: Console, command: str, acts: list[str]) -> None:
        self.console = console
        self.command = command
        self.acts = acts
        self.took: list[tuple[float, bool]] = []
        """For each act so far: its seconds, and whether it ended in time."""
        self.began = self.act_began = time.monotonic()
        self._recent: deque[Snapshot] = deque(maxlen=6)
        self._rate: Counter[str] = Counter()
        """Jobs a second, by queue, over the recent snapshots."""
        self._best_rate: Counter[str] = Counter()

    def __enter__(self) -> View:
        self._print(self.command)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        self.act_began = time.monotonic()

    def end(self, *, over: bool) -> None:
        took, act = time.monotonic() - self.act_began, self.acts[len(self.took)]
        self.took.append((took, over))
        self._print(f"{took:6.1f} s  {act}{'' if over else ': did not end in time!'}")

    def show(self, snapshot: Snapshot) -> None:
        self._recent.append(snapshot)
        first, last = self._recent[0], self._recent[-1]
        for queue, row in last.queues.items():
            rate = (row.done - first.queues[queue].done) / max(last.at - first.at, 0.001)
            self._rate[queue.name] = round(rate)
        self._best_rate |= self._rate

    def screen(self) -> Constrain:
        """Queues, workers and acts, as they are now."""
        last = self._recent[-1]
        warning = Text(last.warning, "italic red", no_wrap=True, overflow="ellipsis")
        queues = self._queues("a second", self._rate)
        parts = (self._title(), queues, Text(), self._workers(), warning, self._acts())
        return Constrain(Group(*parts), WIDTH)

    def last_screen(self) -> Constrain:
        """The same when the tour is over: best rates, and no workers, which are idle by then."""
        queues = self._queues("best a second", self._best_rate)
        return Constrain(Group(self._title(), Text(), queues, Text(), self._acts()), WIDTH)

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def _title(self) -> Table:
        line = Table.grid(expand=True)
        line.add_column(no_wrap=True)
        line.add_column(justify="right")
        elapsed = f"{self._recent[-1].at - self.began:.1f} s"
        line.add_row(Text.assemble(("$ ", "dim"), (self.command, "bold cyan")), elapsed)
        return line

    def _queues(self, rate_name: str, rates: Counter[str]) -> Table:
        table = Table(box=None, expand=True, header_style="dim", padding=(0, 1, 0, 0))
        table.add_column("queue", style="bold", no_wrap=True)
        table.add_column("", style="dim", no_wrap=True, ratio=1)
        for name in ("waiting", "active", "done", "failed", rate_name):
            table.add_column(name, justify="right", min_width=7, no_wrap=True)
        for queue, row in self._recent[-1].queues.items():
            table.add_row(
                queue.name,
                QUEUES[queue],
                shown(row.waiting, "yellow"),
                shown(row.active, "cyan"),
                shown(row.done, "green"),
                shown(row.failed, "red"),
                shown(rates[queue.name], "bold"),
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


class LiveView(View):
    """The same on one screen that is drawn again and again."""

    def __init__(self, console: Console, command: str, acts: list[str]) -> None:
        super().__init__(console, command, acts)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _print(self, line: str) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        super().show(snapshot)
        self._live.update(self.screen(), refresh=True)


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


def draw(picture: Path, view: View, promises: list[Promise]) -> None:
    """Save the last screen and the promises as an SVG file."""
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, force_terminal=True,
        color_system="truecolor", highlight=False,
    )  # fmt: skip
    console.print(view.last_screen())
    summary(console, promises)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(portable(console.export_svg(title="make demo", theme=DIMMED_MONOKAI)))


def portable(svg: str) -> str:
    """The same picture for programs that load no web fonts and drop spaces before a text."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    text = r'x="([\d.]+)"( y="[\d.]+" )textLength="([\d.]+)"([^>]*>)((?:&#160;)+)'
    return re.sub(text, _without_leading_spaces, svg)


def _without_leading_spaces(text: re.Match[str]) -> str:
    blank = len(text[5]) // len("&#160;") * CHARACTER
    x, length = float(text[1]) + blank, float(text[3]) - blank
    return f'x="{x:g}"{text[2]}textLength="{length:g}"{text[4]}'
