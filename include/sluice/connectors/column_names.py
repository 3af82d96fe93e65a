"""Which names the columns of a file may have: each its own, and none that is ours."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.connectors.source import MALFORMED_COLUMN, RAW, RECORD
from sluice.errors import ConfigurationError

# What a row carries on its way through a stage: with such a name a value would be taken for it.
OURS = (RECORD, MALFORMED_COLUMN, RAW, "_source", "_weight")


def check_names(names: Sequence[str], file: str) -> None:
    """Raises ConfigurationError for a name that is there twice, or is one of ours."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{file} has two columns {name!r}, which no stage can tell apart; rename one"
            )
        if name in OURS:
            raise ConfigurationError(
                f"{file} has a column {name!r}, a name that sluice gives to a column of its own; "
                "rename it"
            )
