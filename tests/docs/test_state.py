"""The page of state as data can be followed to the letter, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

from tests.docs.commands import a_clone, blocks, follow
from tests.house.test_repository import REPOSITORY


def test_the_page_of_state_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = blocks(REPOSITORY / "docs/guides/state.md")

    assert sum(block.body.count(".venv/bin/sluice state") for block in page) > 5
    follow(page, a_clone(tmp_path))
