"""The part of docs/performance.md that is written by the run that measured it."""

from pathlib import Path

from benchmarks.harness.plot import plot
from benchmarks.harness.results import Results
from benchmarks.harness.targets import Verdict, verdicts

DOCS = Path(__file__).parents[2] / "docs"
BEGIN = "<!-- written by `make bench-peers`: begin -->"
END = "<!-- written by `make bench-peers`: end -->"
WORDS = {True: "yes", False: "**no**", None: ""}


def summary(results: Results) -> str:
    """Each target, and whether it is met."""
    rows = ["| work | Queasy | against | ratio | target | met |", "|---|---:|---|---:|---|---|"]
    rows += [_row(verdict) for verdict in verdicts(results)]
    return "\n".join(rows)


def _row(one: Verdict) -> str:
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    cells = [one.work, one.ours, one.against, ratio, one.target, WORDS[one.met]]
    return "| " + " | ".join(cells) + " |"


def write(results: Results, document: Path = DOCS / "performance.md") -> None:
    """Replaces what stands between the markers, and the plot beside the document."""
    text = document.read_text()
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"expected {BEGIN!r} and {END!r} in {document}")
    document.write_text(f"{head}{BEGIN}\n\n{_part(results)}\n\n{END}{tail}")
    document.with_suffix(".svg").write_text(plot(results))


def _part(results: Results) -> str:
    about = results.about
    settings = [
        f"- **{name}** ({', '.join(one['packages'])}; {one['promise']}): {one['settings']}"
        + "".join(f"; {what} not measured: {why}" for what, why in one.get("cannot", {}).items())
        for name, one in about["competitors"].items()
    ]
    measured = (
        f"`{about['command']}` on {about['date']}: {about['server']} without persistence, loopback "
        f"TCP, Python {about['python']}, {about['cores']} cores, {about['rounds']} rounds."
    )
    return "\n\n".join(
        [
            measured,
            "![jobs per second of each](performance.svg)",
            "The best of all rounds; in brackets how far apart the rounds were.",
            summary(results),
            "All of them:",
            results.table(),
            "\n".join(settings),
        ]
    )
