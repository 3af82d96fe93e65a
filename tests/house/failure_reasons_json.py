"""The sections of docs/reference/failure-reasons.md, as the pages inside Airflow show them.

An installed package has no docs folder, so the wheel has them as JSON.  After a change of the page:
``python -m tests.house.failure_reasons_json``.
"""

from __future__ import annotations

import json
import re

from sluice.core.failures import CheckpointFailureReason
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs/reference/failure-reasons.md"
SHIPPED = REPOSITORY / "plugins/sluice_airflow/pages/failure-reasons.json"


def written() -> str:
    """For each reason its paragraphs under their titles, links and emphasis taken out."""
    sections = {reason: _parts(text) for reason, text in _sections().items()}
    return json.dumps(sections, indent=1, ensure_ascii=False) + "\n"


def _sections() -> dict[str, str]:
    parts = re.split(r"^#{2,3} (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {reason.value: found[reason.value] for reason in CheckpointFailureReason}


def _parts(text: str) -> list[tuple[str, str]]:
    """A section before the first title has the title ""."""
    before, *titled = re.split(r"^\*\*(.+?)\.\*\* ", text, flags=re.MULTILINE)
    pairs = zip(("", *titled[::2]), (before, *titled[1::2]), strict=True)
    return [(title, plain) for title, body in pairs if (plain := _plain(body))]


def _plain(markdown: str) -> str:
    unlinked = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown).replace("**", "")
    paragraphs = re.split(r"\n{2,}", unlinked.strip())
    return "\n\n".join(" ".join(one.split()) for one in paragraphs if one.strip())


if __name__ == "__main__":
    SHIPPED.write_text(written())
