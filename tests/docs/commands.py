"""A page's commands, run to the letter in a folder that has what a fresh clone has.

- A block ``bash`` is run, block by block, in one folder; ``sh`` is for people only.
- A block with ``title="path"`` is what that file is to hold from here on.
- A block ``text`` right behind a ``bash`` is what the commands print, but for times, sizes and
  places.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from harness import spark_archive
from tests.house.test_repository import REPOSITORY

SECONDS = 300  # For one block, on a machine that is busy.


@dataclass(frozen=True, kw_only=True)
class Block:
    """``title`` is the file that it stands for; ``section`` the heading above it."""

    kind: str
    title: str | None
    section: str
    body: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    section = ""
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            section = tokens[number + 1].content
        if token.type == "fence":
            kind = token.info.split(" ")[0]
            title = re.search(r'title="([^"]+)"', token.info)
            named = None if title is None else title[1]
            found.append(Block(kind=kind, title=named, section=section, body=token.content))
    return found


def a_clone(folder: Path) -> Path:
    """A clone after ``make setup``, as the pages expect it: the code, and ``.venv``.

    The bytecode comes along, for each page would compile it anew.
    """
    clone = folder / "sluice"
    being_written = shutil.ignore_patterns("*.pyc.*")  # By another process; its name will go.
    shutil.copytree(REPOSITORY / "include", clone / "include", ignore=being_written)
    (clone / ".venv").symlink_to(sys.prefix)
    return clone


def follow(page: list[Block], clone: Path) -> None:
    """Do what *page* says, in its order; what it prints has to be what the page shows."""
    printed: str | None = None
    for block in page:
        if block.title is not None:
            path = clone / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
        elif block.kind == "bash":
            printed = _run(block, clone)
        elif block.kind == "text" and printed is not None:
            assert masked(printed) == masked(block.body), f"{block.section}, printed:\n{printed}"
        if block.kind != "bash":
            printed = None


def masked(printed: str) -> list[str]:
    """Without what differs from run to run: times, sizes, places, and how wide a table is."""
    said = re.sub(r"\(trace: [^)]+\)", "(trace: …)", printed)
    said = re.sub(r"file://\S+", "…", said)
    said = re.sub(r"\b\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{3}", "…", said)
    said = re.sub(r"\d+(?:\.\d+)? (?:ms|s|min|B|kB|MB)\b", "…", said)
    return [" ".join(line.split()) for line in said.splitlines() if line.strip()]


def _run(block: Block, clone: Path) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    kept[spark_archive.VARIABLE] += " -Dspark.ui.enabled=false"  # Scripts without Sluice start one.
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block.body],
        cwd=clone,
        env=kept | {"PYTHONPATH": str(clone / "include"), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, f"{block.section}\n{block.body}\n{ran.stdout}"
    return ran.stdout
