"""Every link of every page leads somewhere: files, folders, headings."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.house.test_repository import REPOSITORY, tracked

PAGES = tracked("*.md")
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:")
# A page in a docstring or comment: `docs/....md`, with or without a heading.
NAMED_IN_CODE = re.compile(r"\bdocs/[a-z][\w/-]*\.md(?:#[\w-]+)?")


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or []]


@cache
def parsed(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, by GitHub's rule, which is also that of mkdocs.yml."""
    found: list[str] = []
    tokens = parsed(page)
    for opening, heading in pairwise(tokens):
        if opening.type == "heading_open":
            shown = "".join(child.content for child in heading.children or [])
            slug = re.sub(r"[^\w\- ]", "", shown).strip().lower().replace(" ", "-")
            again = found.count(slug)
            found.append(f"{slug}-{again}" if again else slug)
    return frozenset(found)


def why_broken(page: Path, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return f"there is no {path}"
    if not there.is_relative_to(REPOSITORY):
        return f"{path} is not in the repository"
    if anchor and anchor not in anchors(there):
        return f"{there.name} has no heading #{anchor}"
    return None


def titled(title: str) -> list[Path]:
    """The pages of the documentation with this title."""
    pages = [page for page in PAGES if page.is_relative_to(REPOSITORY / "docs")]
    return [page for page in pages if page.read_text().startswith(f"# {title}\n")]


def texts_of(path: Path) -> set[str]:
    """The strings of a module that a person may be shown: all but its docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    targets = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in inline(parsed(page))
        if token.type in ("link_open", "image")
    ]

    broken = {
        target: why
        for target in targets
        if not EXTERNAL.match(target) and (why := why_broken(page, target))
    }

    assert broken == {}


def test_every_page_that_code_names_exists() -> None:
    broken = {}
    everywhere = set(tracked("*.py", "Makefile", "*.toml", "*.yml", "*.yaml")) - {Path(__file__)}
    for path in everywhere:
        for named in NAMED_IN_CODE.findall(path.read_text()):
            why = why_broken(REPOSITORY / "x", named)
            if why:
                broken[f"{path.relative_to(REPOSITORY)}: {named}"] = why

    assert broken == {}


def test_no_message_names_a_page_by_its_path() -> None:
    """A wheel has no docs folder: a message names a page by its title, see ``core/failures.py``."""
    named = {
        f"{path.relative_to(REPOSITORY)}: {text}"
        for path in tracked("include/sluice/*.py", "plugins/*.py")
        for text in texts_of(path)
        if NAMED_IN_CODE.search(text)
    }

    assert named == set()


def test_a_page_that_a_message_names_by_its_path_would_be_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""docs/a.md"""\nraise ValueError(f"{place} is bad; see docs/b.md")\n')

    found = [text for text in texts_of(module) if NAMED_IN_CODE.search(text)]

    assert found == [" is bad; see docs/b.md"]


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    page = REPOSITORY / "README.md"

    assert why_broken(page, "docs/nowhere.md") == "there is no docs/nowhere.md"
    assert why_broken(page, "CONTRIBUTING.md#nowhere") == "CONTRIBUTING.md has no heading #nowhere"
    assert why_broken(page, str(tmp_path)) == f"{tmp_path} is not in the repository"
