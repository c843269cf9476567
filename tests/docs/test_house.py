"""CONTRIBUTING lists every module of the package, and no other, and shows the checked layers.
What it says about the owners of state is true.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import queasy
from tests.docs.pages import ROOT, section

PACKAGE = Path(queasy.__file__).parent


def listed() -> list[str]:
    """The files in the tables of the house. The heading above a table names their folder."""
    found: list[str] = []
    folder = ""
    for line in section(ROOT / "CONTRIBUTING.md", "The house").splitlines():
        if heading := re.match(r"### .*: `([\w/]+)/`$", line):
            folder = "" if heading[1] == "queasy" else f"{heading[1]}/"
        elif row := re.match(r"\| `(\w+\.(?:py|lua))` \| \S", line):
            found.append(folder + row[1])
    return found


def there() -> set[str]:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]
    return {file.relative_to(PACKAGE).as_posix() for file in files if file.name != "__init__.py"}


def test_every_module_is_listed_once_with_what_it_holds() -> None:
    modules = listed()
    assert sorted(modules) == sorted(there())


def drawn_layers() -> dict[str, list[str]]:
    """The layers of each package in CONTRIBUTING, as in a contract."""
    rows = re.findall(
        r"^\| `([\w/]+)/` \| (`.* → `.*) \|$", section(ROOT / "CONTRIBUTING.md", "The house"), re.M
    )
    return {
        package.replace("/", "."): re.sub(r"[`/]|\\(?=\|)", "", layers).split(" → ")
        for package, layers in rows
    }


def checked_layers() -> dict[str, list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {
        container.removeprefix("queasy."): contract["layers"]
        for contract in contracts["contracts"]
        for container in contract["containers"]
    }


def test_layers_are_those_that_are_checked() -> None:
    assert drawn_layers() == checked_layers()


STANDARD_LIBRARY = {
    "self.closing_error.__cause__",
    "problem.__cause__",
    "context.check_hostname",
    "context.verify_mode",
    "thread.daemon",
    "logging.getLogger(name).disabled",
}
"""Fields of objects of the standard library, which have no method to set them."""


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to or deletes, without tuples and lists."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            found = [target]
        case ast.For(target=target) | ast.AsyncFor(target=target):
            found = [target]
        case ast.withitem(optional_vars=ast.expr() as target):
            found = [target]
        case _:
            return
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found = [*found, *target.elts]
        else:
            yield target


def fields_written_from_outside(source: str) -> list[str]:
    """Assignments to a field of an object that is not the method's own."""
    return [
        ast.unparse(target)
        for node in ast.walk(ast.parse(source))
        for target in assigned(node)
        if isinstance(target, ast.Attribute)
        and not (isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"})
    ]


def test_a_field_that_another_object_writes_is_found() -> None:
    source = "self.a = 1; b.c, (self.d.e, f) = 1, (2, 3); g.h += 1; del i.j\nfor k.l in (): pass"
    assert sorted(fields_written_from_outside(source)) == ["b.c", "g.h", "i.j", "k.l", "self.d.e"]


def test_only_an_object_itself_writes_its_fields() -> None:
    written = {
        f"{path.relative_to(PACKAGE)}: {field}"
        for path in PACKAGE.rglob("*.py")
        for field in fields_written_from_outside(path.read_text())
        if field not in STANDARD_LIBRARY
    }
    assert not written
