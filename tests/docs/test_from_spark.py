"""The way from three scripts to a pipeline can be followed to the letter, and both agree."""

from __future__ import annotations

from pathlib import Path

from tests.docs.commands import a_clone, blocks, follow
from tests.house.test_repository import REPOSITORY


def test_the_way_from_scripts_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = blocks(REPOSITORY / "docs/guides/from-spark.md")

    assert any(block.title == "include/pipelines/shop.py" for block in page)
    follow(page, a_clone(tmp_path))
