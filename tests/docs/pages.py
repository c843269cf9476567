"""The documents, and what they show."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    """The prose of a page: a `#` in a program is not a heading."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next heading of the same level."""
    text = page.read_text()
    heading = re.search(rf"^(#+) {re.escape(title)}$", text, re.M)
    assert heading is not None, f"{name_of(page)} has no heading {title!r}"
    rest = text[heading.end() :]
    after = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.M)
    return rest[: after.start()] if after else rest


def programs() -> dict[str, str]:
    """The Python programs of all pages, by page and number."""
    found: dict[str, str] = {}
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
        found |= {f"{name_of(page)}-{n}": code for n, code in enumerate(blocks, 1)}
    return found


def file_of(code: str) -> str | None:
    """The file that a program says it is, in its first line: `# app.py` or `# shop/web.py`."""
    named = re.match(r"# ([\w/]+\.py)\n", code)
    return named[1] if named else None


def files_of_a_project(folder: str) -> dict[str, str]:
    """The programs that belong together, because their files are in one folder."""
    named = {file_of(code): code for code in programs().values()}
    return {file: code for file, code in named.items() if file and file.startswith(f"{folder}/")}


def program(file: str) -> str:
    (code,) = [code for code in programs().values() if file_of(code) == file]
    return code
