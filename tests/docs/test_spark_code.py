"""The page of Spark code can be followed to the letter, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

from tests.docs.commands import a_clone, blocks, follow
from tests.house.test_repository import REPOSITORY


def test_the_page_of_spark_code_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = blocks(REPOSITORY / "docs/guides/spark-code.md")

    assert any(block.title == "include/pipelines/spenders.py" for block in page)
    follow(page, a_clone(tmp_path))
