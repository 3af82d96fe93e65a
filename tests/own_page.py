"""The connectors of the page "A connector of one's own", and the table that its source reads."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "connectors" / "own.md"
IMPORTS = """
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
import pyarrow as pa
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.declaration.places import RollBack, SourceMeaning
from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import Note, StagedSink, TargetDefaults
from sluice.connectors.staged_sink import decoded_note, encoded_note
from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError
from sluice.declaration.params import Param
from sluice.store.open import open_store
"""


def blocks() -> list[str]:
    found: list[str] = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return found


def names_of_the_page() -> dict[str, Any]:
    """What its code defines; as in a notebook, so that workers get the classes by value."""
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(IMPORTS + "\n".join(blocks()), found)  # noqa: S102 - it is our own page
    return found


def insert(path: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows of id, name and price to the table that the page's source reads."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS events (id, name, price)")
        db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
