"""The page about earlier systems names tests that exist, and things that this package has."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import queasy
from queasy.client import Running
from tests.docs.pages import DOCS, PAGES, ROOT, section, without_code
from tests.docs.test_api import public_names
from tests.docs.test_reference import commands

PAGE = DOCS / "reference" / "origins.md"
TESTS = ROOT / "tests"
SECTIONS = ("Queasy for Node: overview", "Queasy for Node: data and transitions",
            "Queasy for Node: architecture", "redis-work-queue: overview",
            "redis-work-queue: technical details", "Worqr", "hworker")  # fmt: skip
SPAN = re.compile(r"`([^`]+)`")
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
# An object in an example is one of this class.
OBJECTS = {
    "client": queasy.Client, "queue": queasy.Queue, "lease": queasy.Lease, "job": queasy.Job,
    "error": queasy.JobError, "Worker": Running, "queasy": queasy,
}  # fmt: skip


class Row(NamedTuple):
    statement: str
    here: str
    shown_by: str


def rows(text: str) -> list[Row]:
    found: list[Row] = []
    for line in re.findall(r"^\| (?!-)(.*) \|$", text, re.M):
        cells = line.split(" | ")
        assert len(cells) == 3, line
        found.append(Row(*cells))
    return [row for row in found if row.statement != "its statement"]


ROWS = [row for title in SECTIONS for row in rows(section(PAGE, title))]


# Tests


def names_of_tests(file: str) -> set[str]:
    """The tests of a file, and the promises of the server functions."""
    path = TESTS / file
    if not path.is_file():
        return set()
    functions = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        node.name
        for node in functions
        if node.name.startswith("test_")
        or any(isinstance(one, ast.Name) and one.id == "promise" for one in node.decorator_list)
    }


def missing_tests(shown_by: str) -> list[str]:
    """What a last cell names and does not exist. It must name a test, or say why not."""
    named = NAMED_TEST.findall(shown_by)
    problems = [f"{file}::{name}" for file, name in named if name not in names_of_tests(file)]
    if not named and not re.match(r"\*\*(differs|not tested)\*\*", shown_by):
        problems.append(f"neither a test nor a reason: {shown_by}")
    return problems


# Names


def known_words() -> set[str]:
    """The words that the reference and the guides use in code. Other tests compare these pages
    with the package, and run their programs.
    """
    pages = [p for p in PAGES if p.parent.name in ("reference", "guides") and p != PAGE]
    texts = [without_code(page.read_text()) for page in pages]
    spans = " ".join(span for text in texts for span in SPAN.findall(text))
    return set(re.findall(r"[\w-]+", spans))


WORDS = known_words()
OURS = {name: getattr(queasy, name) for name in queasy.__all__}


def flags_of(command: str) -> set[str] | None:
    parser = commands().get(command)
    return {one for action in parser._actions for one in action.option_strings} if parser else None


def unknown_names(span: str) -> Iterator[str]:
    """The names in a piece of code that do not exist."""
    if command := re.fullmatch(r"queasy ([\w-]+)((?: --[\w-]+)*)", span):
        flags = flags_of(command[1])
        yield from [command[1]] if flags is None else set(command[2].split()) - flags
    elif re.fullmatch(r"make [\w-]+|[\w/]+/[\w.]*|LICENSE|pytest", span):
        return  # tests of links and make targets check them
    elif re.fullmatch(r"-?\w[\w-]*", span):
        yield from [] if span in WORDS or span in OURS else [span]
    elif option := re.fullmatch(r"(\w+)=(\"[\w-]+\"|[\w.]+)", span):
        yield from unknown_names(option[1])
        yield from unknown_names(option[2]) if option[2].startswith('"') else []
    else:
        yield from unknown_in(ast.parse(span, mode="eval").body)


def unknown_in(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            kind = OBJECTS.get(owner) or OURS.get(owner)
            yield from [] if name in members(kind) else [f"{owner}.{name}"]
        case ast.Call(func=function, keywords=keywords):
            yield from unknown_in(function)
            called = resolved(function)
            if called is not None:
                accepts = inspect.signature(called).parameters
                open_ended = any(one.kind is one.VAR_KEYWORD for one in accepts.values())
                given = [word.arg for word in keywords if word.arg]
                yield from [
                    f"{ast.unparse(function)}({name}=)"
                    for name in given
                    if name not in accepts and not (open_ended and name in WORDS)
                ]
        case ast.Name(id=name):
            yield from [] if name in OURS or name in WORDS else [name]
        case ast.Constant(value=str(word)):
            yield from [] if word in WORDS else [word]
        case ast.Constant():
            return
        case _:
            yield f"cannot read {ast.unparse(node)}"


def members(kind: object) -> set[str]:
    if inspect.isclass(kind):
        return public_names(kind)
    return set(queasy.__all__) if kind is queasy else set()


def resolved(function: ast.expr) -> object:
    match function:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return getattr(OBJECTS.get(owner) or OURS.get(owner), name, None)
        case ast.Name(id=name):
            return OURS.get(name)
        case _:
            return None


def test_every_row_names_tests_that_exist_or_says_why_not() -> None:
    assert len(ROWS) > 250
    assert [problem for row in ROWS for problem in missing_tests(row.shown_by)] == []


def test_every_name_of_ours_exists() -> None:
    spans = [(span, row) for row in ROWS for span in SPAN.findall(row.here)]
    problems = [f"{name} in: {row.here}" for span, row in spans for name in unknown_names(span)]
    assert len(spans) > 200
    assert problems == []


def test_every_section_has_rows() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.M)
    assert titles == list(SECTIONS)
    for title in SECTIONS:
        assert len(rows(section(PAGE, title))) > 15, title


@pytest.mark.parametrize(
    "shown_by",
    [
        "`client/test_lease.py::test_extend_keeps_a_lease_alife`",
        "`client/test_leases.py::test_extend_keeps_a_lease_alive`",
        "`store/promises_order.py::nothing_runs_erly`",
        "`store/harness.py::load`",
        "as above",
        "",
    ],
)
def test_a_misspelt_test_is_found(shown_by: str) -> None:
    assert missing_tests(shown_by)


@pytest.mark.parametrize(
    "span",
    [
        "queue.dispach(data)", "queue.dispatch(data, run_in=5)", "client.queues", "Retri",
        "job.retries", "max_retrys", "queasy wurker", "queasy unserve --now", '"if_latter"',
        "Worker.unserved(queue)", "kueue.dispatch(data)", "[1, 2]", 'if_exist="skip"',
        'if_exists="skipp"',
    ],
)  # fmt: skip
def test_a_misspelt_name_is_found(span: str) -> None:
    assert list(unknown_names(span))
