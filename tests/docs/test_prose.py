"""Prose uses the words of the field: fewer than one word in 1,000 is from the list below.

The words are not wrong in themselves. Where they were frequent, sentences had to be read twice:
"who takes it", "he is told", "behind the last one".
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator

from tests.docs.pages import ROOT

DIALECT = re.compile(
    r"\b(who|whom|whoever|he|his|him|somebody|nobody|anybody|behind|told|tells?|so long|of those)"
    r"\b",
    re.IGNORECASE,
)
FOLDERS = ["src", "tests", "docs", "benchmarks", "examples"]


def in_python(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield docstring
            case _:
                pass


def in_lua(text: str) -> Iterable[str]:
    return re.findall(r"--+(.*)", text)


def in_markdown(text: str) -> Iterable[str]:
    return [re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)]


PROSE: dict[str, Callable[[str], Iterable[str]]] = {
    ".py": in_python, ".lua": in_lua, ".md": in_markdown,
}  # fmt: skip


def dialect_words(prose: Iterable[str]) -> tuple[int, list[str]]:
    """How many words there are, and those in the list with the words around them."""
    count, found = 0, []
    for text in prose:
        count += len(re.findall(r"[A-Za-z']+", text))
        found += [text[max(0, m.start() - 30) : m.end() + 30] for m in DIALECT.finditer(text)]
    return count, found


def test_dialect_is_found_in_comments_docstrings_and_pages_but_not_in_code() -> None:
    python = '"""Who takes it."""\nwho = "told"  # he is told\n'
    assert dialect_words(in_python(python)) == (6, ["# he is told"] * 2 + ["Who takes it."])
    assert dialect_words(in_lua("local behind -- nobody waits"))[1] == [" nobody waits"]
    assert dialect_words(in_markdown("`who` waits\n```\nwho\n```\nbehind"))[0] == 2


def test_fewer_than_one_word_in_a_thousand_is_dialect() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files += ROOT.glob("*.md")
    prose = [
        text
        for path in files
        if path.suffix in PROSE
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        for text in PROSE[path.suffix](path.read_text())
    ]
    count, found = dialect_words(prose)
    assert count > 10_000
    assert len(found) < count / 1000, found
