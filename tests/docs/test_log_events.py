"""docs/reference/log-events.md lists exactly the events that the code logs, with their levels."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "src/queasy/worker"
PAGE = ROOT / "docs/reference/log-events.md"
LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
# Where the name of the event and its level are among the arguments.
POSITIONS = {"event": (0, 1), "log_error": (0, None), "log_event": (2, 1)}


def listed() -> dict[str, set[str]]:
    """The events on the page, with their levels."""
    rows = re.findall(
        r"^\| `(\w+)` \| ((?:debug|info|warning|error|, )+) \|", PAGE.read_text(), re.M
    )
    assert len(rows) == len({name for name, _ in rows}), "an event is listed twice"
    return {name: set(levels.split(", ")) for name, levels in rows}


def logged() -> dict[str, set[str]]:
    """The events in the code, with their levels."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(WORKER.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            for name, level in [*_called(node, tree, path), *_in_a_table(node)]:
                found[name].add(level)
    return found


def _called(node: ast.AST, tree: ast.Module, path: Path) -> Iterator[tuple[str, str]]:
    """Calls such as event("name", logging.WARNING, ...)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return
    where, level_at = POSITIONS.get(node.func.id, (None, None))
    if where is None or len(node.args) <= where:
        return
    if path.name == "events.py" and isinstance(node.args[where], ast.Name):
        return  # these functions call each other
    level = "error" if node.func.id == "log_error" else "info"
    if level_at is not None and len(node.args) > level_at:
        given = _level(node.args[level_at])
        if given is None:
            return  # from a table of names and levels
        level = given
    for name in _names(node.args[where], tree):
        yield name, level


def _in_a_table(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Pairs such as ("name", logging.WARNING)."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        name, level = node.elts
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and _level(level):
            yield name.value, _level(level) or ""


def _level(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and node.attr in LEVELS:
        return node.attr.lower()
    return None


def _names(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The string itself, both of a condition, or what is assigned to the variable."""
    match node:
        case ast.Constant(value=str(name)):
            yield name
        case ast.IfExp(body=body, orelse=orelse):
            yield from _names(body, tree)
            yield from _names(orelse, tree)
        case ast.Name(id=variable):
            for statement in ast.walk(tree):
                if isinstance(statement, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == variable
                    for target in statement.targets
                ):
                    yield from _names(statement.value, tree)
        case _:
            pass


def test_every_event_that_is_logged_is_on_the_page_and_the_reverse() -> None:
    code, page = set(logged()), set(listed())
    assert sorted(code - page) == [], "logged, but not listed"
    assert sorted(page - code) == [], "listed, but never logged"


def test_the_page_names_the_levels_of_every_event() -> None:
    page = listed()
    assert {name: levels for name, levels in logged().items() if name in page} == page


def test_an_event_is_one_word_that_can_be_searched_for() -> None:
    assert [name for name in logged() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
