"""Checks of input are no ``assert``, which ``python -O`` drops; events are carried out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.test_repository import REPOSITORY

SLUICE = REPOSITORY / "include/sluice"
PLUGINS = REPOSITORY / "plugins"
OF_A_PROJECT = SLUICE / "cli" / "project"  # What `sluice init` writes, its tests among it.

# What comes out of the bucket, out of a form or off a command line comes through these.
GUARDED = [
    SLUICE / "core",
    SLUICE / "protocol",
    SLUICE / "store",
    SLUICE / "job",
    SLUICE / "coordinator",
    SLUICE / "surface",
    SLUICE / "cli",
    PLUGINS,
]
MAKEFILE = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
GUARDS = re.search(r"^GUARDS := (.+)$", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("folder", GUARDED, ids=lambda path: path.name)
def test_no_assert_guards_what_comes_from_outside(folder: Path) -> None:
    assert folder.is_dir()
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        if not path.is_relative_to(OF_A_PROJECT)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]

    assert found == []


def test_every_test_run_plays_the_guards_without_assert() -> None:
    assert GUARDS is not None
    assert all((REPOSITORY / path).exists() for path in GUARDS[1].split())
    assert re.search(r"^test:.*\n\t@\$\(MAKE\) .* optimized$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^optimized:.*\n\t@PYTHONOPTIMIZE=1 .*\$\(GUARDS\)$", MAKEFILE, re.MULTILINE)


def test_this_would_be_noticed() -> None:
    script = "assert False; print('gone')"

    ran = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "gone\n"


def test_an_event_is_journaled_and_carried_out_in_one_call() -> None:
    """An append to the journal outside of ``record`` would not carry out the event's commands."""
    found = [
        str(path.relative_to(SLUICE))
        for path in sorted(SLUICE.rglob("*.py"))
        if "journal.append(" in path.read_text()
    ]

    assert found == ["coordinator/record.py"]
