"""Texts name who acts: a subtask, a coordinator, a reader, a person."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.test_repository import REPOSITORY, tracked

VAGUE = re.compile(r"\b(nobody|somebody|anybody|whoever|whomever)\b", re.IGNORECASE)
# PostgreSQL does not run as root: the stack runs it as the user of this name.
NAMES_A_USER = REPOSITORY / "include/sluice/devstack/postgres_server.py"
CODE = [
    path
    for path in tracked(
        "include/*.py", "plugins/*.py", "bench/*.py", "dags/*.py", "spark_jobs/*.py"
    )
    if path != NAMES_A_USER
]
PAGES = [page for page in tracked("docs/*.md") if page.parent.name != "adr"]


def vague(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if VAGUE.search(line)
    ]


@pytest.mark.parametrize("folder", ["include", "plugins", "bench", "dags", "spark_jobs", "docs"])
def test_a_text_says_which_actor_it_speaks_of(folder: str) -> None:
    here = [path for path in [*CODE, *PAGES] if path.is_relative_to(REPOSITORY / folder)]

    assert here
    assert {str(path): lines for path in here if (lines := vague(path))} == {}


def test_a_vague_actor_would_be_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""The journal."""\n\nlocked = True  # Whoever comes next waits.\n')

    assert vague(module) == ["3: locked = True  # Whoever comes next waits."]
