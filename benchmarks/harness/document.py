"""Writes the measured part of docs/performance.md."""

from pathlib import Path

from benchmarks.harness.plot import plot
from benchmarks.harness.results import Results
from benchmarks.harness.targets import TargetResult, evaluate_targets

DOCS = Path(__file__).parents[2] / "docs"
BEGIN = "<!-- written by `make bench-peers`: begin -->"
END = "<!-- written by `make bench-peers`: end -->"
MET = {True: "yes", False: "**no**", None: ""}


def summary(results: Results) -> str:
    """Each target, and whether it is met."""
    rows = ["| work | Queasy | against | ratio | target | met |", "|---|---:|---|---:|---|---|"]
    rows += [_row(target) for target in evaluate_targets(results)]
    return "\n".join(rows)


def conditions(results: Results) -> str:
    """The command, the date, the server and the machine of a run."""
    about = results.about
    return (
        f"`{about['command']}` on {about['date']}: {about['server']} without persistence, loopback "
        f"TCP, Python {about['python']}, {about['cores']} cores, {about['rounds']} rounds."
    )


def _row(one: TargetResult) -> str:
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    cells = [one.work, one.ours, one.against, ratio, one.target, MET[one.met]]
    return "| " + " | ".join(cells) + " |"


def write(results: Results, document: Path = DOCS / "performance.md") -> None:
    """Replace the text between the two markers, and the plot beside the document."""
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
        + "".join(
            f"; {what} not measured: {why}" for what, why in one.get("unsupported", {}).items()
        )
        for name, one in about["competitors"].items()
    ]
    return "\n\n".join(
        [
            conditions(results),
            "![jobs per second of each competitor](performance.svg)",
            "Each value is the best of all rounds; in brackets the spread of the rounds.",
            summary(results),
            "All metrics of all competitors:",
            results.table(),
            "\n".join(settings),
        ]
    )
