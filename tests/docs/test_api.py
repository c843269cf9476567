"""The API page lists every public method and field of the package, and no other."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import queasy
from queasy import errors
from queasy.client import Running
from tests.docs.pages import DOCS

API = DOCS / "reference" / "api.md"
EXPORTED = {name: getattr(queasy, name) for name in set(queasy.__all__) - set(errors.__all__)}
CLASSES: dict[str, type] = {
    name: value for name, value in EXPORTED.items() if inspect.isclass(value)
} | {"Worker": Running}
INHERITED = {*dir(object), *dir(Exception)}
NAMED = re.compile(r"`(await )?(?:(\w+)\.)?(\w+)(?:\((.*?)\))?`")


class Row(NamedTuple):
    """A name that the page lists for a class."""

    owner: str
    name: str
    arguments: str | None
    """None for a field."""
    awaited: bool


def rows() -> Iterator[Row]:
    """The names in the first column of each table. The heading above names their classes, or the
    row does (`Job.flag`). A smaller heading without a class continues the section.
    """
    owners: list[str] = []
    for line in API.read_text().splitlines():
        if heading := re.match(r"(##+) (.*)", line):
            found = [word for word in re.findall(r"\w+", heading[2]) if word in CLASSES]
            owners = found if found or heading[1] == "##" else owners
        elif line.startswith("| `"):
            for awaited, owner, name, arguments in NAMED.findall(line.split(" | ")[0]):
                is_call = f"{name}(" in line
                for one in [owner] if owner else owners:
                    yield Row(one, name, arguments if is_call else None, bool(awaited))


ROWS = list(rows())
CALLS = [row for row in ROWS if row.arguments is not None]


def set_by_init(kind: type) -> set[str]:
    """The attributes that the class or a base of it sets in `__init__`."""
    return {
        node.attr
        for base in kind.__mro__
        if base.__module__.startswith("queasy")
        for method in ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def public_names(kind: type) -> set[str]:
    names = (set(dir(kind)) | set_by_init(kind)) - INHERITED
    return {name for name in names if not name.startswith("_")}


def shown_signature(function: Any) -> list[str]:
    """The arguments as the page writes them: `id`, `running=False`."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    return [
        "…" if one.kind in variable
        else one.name if one.default is one.empty
        else f"{one.name}={one.default!r}".replace("'", '"')
        for one in found
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_page_lists_exactly_the_public_names_of_a_class(name: str) -> None:
    listed = [row.name for row in ROWS if row.owner == name]
    there = public_names(CLASSES[name])
    assert there - set(listed) == set(), "missing in the page"
    assert set(listed) - there == set(), "on the page, but does not exist"
    assert len(listed) == len(set(listed)), "listed twice"


def test_page_names_everything_that_can_be_imported() -> None:
    page = API.read_text()
    for name in EXPORTED:
        assert re.search(rf"`{name}\b|^#.* {name}\b", page, re.M), name


def test_page_lists_no_class_that_does_not_exist() -> None:
    assert {row.owner for row in ROWS} <= set(CLASSES)


def test_signatures_are_those_of_the_methods() -> None:
    for row in CALLS:
        wanted = shown_signature(getattr(CLASSES[row.owner], row.name))
        shown = [argument for argument in (row.arguments or "").split(", ") if argument]
        if "…" in shown:  # some are left out
            assert set(shown) - {"…"} <= set(wanted), row
        else:
            assert shown == wanted, row


def test_methods_have_parentheses_and_await_where_they_need_it() -> None:
    for row in ROWS:
        found = inspect.getattr_static(CLASSES[row.owner], row.name, None)
        is_method = inspect.isfunction(found) or isinstance(found, classmethod)
        assert is_method == (row.arguments is not None), row
        if not row.owner.startswith("Sync"):  # the page says that these need no `await`
            assert inspect.iscoroutinefunction(found) == row.awaited, row
