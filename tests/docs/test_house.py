"""CONTRIBUTING lists every module of the package, and no other, and shows the checked layers."""

import re
import tomllib
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
