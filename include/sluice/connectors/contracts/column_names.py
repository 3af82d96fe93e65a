"""The check of a file's column names: they are distinct, and none is reserved."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW, RECORD
from sluice.errors import ConfigurationError

# Columns that sluice adds to rows within a stage; a file's column of that name would replace one.
OURS = (RECORD, MALFORMED_COLUMN, RAW, "_source", "_weight")

# Polars takes such a name for a pattern of columns.
PATTERN = re.compile(r"\*|\^.*\$", re.DOTALL)


def check_names(names: Sequence[str], file: str) -> None:
    """Raises ConfigurationError for a name that occurs twice, is a pattern, or is reserved."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{file} has two columns {name!r}, which no stage can tell apart; rename one"
            )
        if PATTERN.fullmatch(name):
            raise ConfigurationError(
                f"{file} has a column {name!r}, which looks like a pattern of names; rename it"
            )
        if name.lower() in OURS:  # Spark's SQL ignores case.
            raise ConfigurationError(
                f"{file} has a column {name!r}, a name that sluice gives to a column of its own; "
                "rename it"
            )
