"""The README's commands work in the order in which they stand, and print what it shows."""

from __future__ import annotations

from pathlib import Path

from tests.docs.commands import a_clone, blocks, follow
from tests.house.test_repository import REPOSITORY


def test_the_readme_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = blocks(REPOSITORY / "README.md")

    assert sum(block.body.count(".venv/bin/sluice") for block in page if block.kind == "bash") > 5
    follow(page, a_clone(tmp_path))
