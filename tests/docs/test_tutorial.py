"""The tutorial can be followed to the letter, and prints what it shows.

Every test run follows it until a worker has died and the job has healed; ``make tutorial`` goes on
to the end: kill -9, a savepoint, a change, a restore.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.docs.commands import Block, a_clone, blocks, follow
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs/tutorial/first-pipeline.md"
LAST_OF_THE_SHORT_FORM = "5. A worker dies"


def the_page() -> list[Block]:
    page = blocks(PAGE)
    if os.environ.get("SLUICE_TUTORIAL") == "all":
        return page
    sections = list(dict.fromkeys(block.section for block in page))
    followed = sections[: sections.index(LAST_OF_THE_SHORT_FORM) + 1]
    return [block for block in page if block.section in followed]


def test_the_tutorial_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = the_page()

    assert sum(block.body.count("sluice run") for block in page if block.kind == "bash") >= 2
    follow(page, a_clone(tmp_path))
