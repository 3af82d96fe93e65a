"""What guards input is no ``assert``: ``python -O`` drops those."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SLUICE = REPOSITORY / "include/sluice"
PLUGINS = REPOSITORY / "plugins"

# What comes out of the bucket, out of a form or off a command line comes through these.
GUARDED = [
    SLUICE / "core",
    SLUICE / "protocol",
    SLUICE / "storage",
    SLUICE / "runner",
    SLUICE / "cli",
    PLUGINS,
]
MAKEFILE = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
GUARDS = re.search(r"^GUARDS := (.+)$", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("folder", GUARDED, ids=lambda path: path.name)
def test_no_assert_guards_what_comes_from_outside(folder: Path) -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]

    assert found == []


def test_keys_and_records_are_guarded_without_assert() -> None:
    """Some of what ``make optimized`` runs: the rest takes longer."""
    assert GUARDS is not None
    some = [path for path in GUARDS[1].split() if "protocol" in path or "hostile" in path]
    ran = subprocess.run(
        [sys.executable, "-O", "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-W", "ignore::pytest.PytestConfigWarning", "-k", "name or key", *some],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": "include:plugins:."},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\d{2} passed", ran.stdout), ran.stdout


def test_this_would_be_noticed() -> None:
    script = "assert False; print('gone')"

    ran = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "gone\n"
