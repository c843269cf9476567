"""Every link, anchor and command that a document names exists."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name_of, without_code

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for found in LINK.finditer(without_code(page.read_text())):
        link = found[1] or found[2]
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{name_of(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)}: {link}"


def test_index_lists_every_page_with_a_question() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).as_posix()
        if path != "README.md":
            assert re.search(rf"\]\({path}\) \| .*\? \|$", index, re.M), f"{path} is not listed"


def test_make_targets_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M):
            assert re.search(rf"^{target}:", makefile, re.M), f"{name_of(page)}: make {target}"


def test_files_and_folders_in_the_documents_exist() -> None:
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(r"`((?:tests|benchmarks|examples|docs|src)/[\w/.-]*)`", text):
            assert (ROOT / path).exists(), f"{name_of(page)}: {path}"
