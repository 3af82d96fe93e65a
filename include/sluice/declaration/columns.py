"""Names of columns: which a user may give, and which are Sluice's own.

Between a source and a sink rows have columns of Sluice's beside those of the user: where a row came
from, how often it counts, the hash of its key, what an operator adds while it works.  A user's
column of such a name would be taken for one of them, and ``_weight`` be the row's weight.  So these
names are one list, and are refused wherever a user can write one: in ``key_by``, ``select``, an
aggregate, ``lookup``, a schema, the result of a function.

Spark's SQL ignores case, and Polars does not: so two columns that differ in nothing else are one in
some places and two in others, and are refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.declaration.places import MALFORMED_COLUMN, RAW, RECORD
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Column
from sluice.errors import ConfigurationError

# Columns that are added to rows where they are read.  No source may have one.  Where a source is
# read, its where() and select() may read those of OF_RECORDS.
OF_SOURCES = frozenset({RECORD, MALFORMED_COLUMN, RAW, "_corrupt", "_object", "_source", "_weight"})
OF_RECORDS = frozenset({MALFORMED_COLUMN, RAW, "_source"})
# Columns that rows get behind that, and that an operator adds to its rows or its state.  A source
# may have them, and a ``select`` give them another name before a stage reads them.
OF_STAGES = frozenset(
    {
        *("_before", "_had", "_has"),
        *("_deleted", "_hash", "_image", "_subtask", "_total", "_written_ms"),
        *("_beside", "_change", "_copies", "_count", "_expires_ms", "_index", "_is_former"),
        *("_is_stored", "_key", "_map_key", "_matched", "_more", "_number", "_other_copies"),
        *(
            "_parallelism",
            "_place",
            "_position",
            "_rank",
            "_row_count",
            "_rows",
            "_run",
            "_sequence",
            "_session",
        ),
        *("_stretch", "_time_ms", "_timer_ms", "_value"),
    }
)
# What the aggregates of a stage compute of a row, and keep in the state.  No source may have one.
_COMPUTED = re.compile(r"_(where|argument|order|by|count|sum)_.*", re.DOTALL)

# Polars takes such a name for a pattern of columns.
PATTERN = re.compile(r"\*|\^.*\$", re.DOTALL)


def is_reserved(name: str) -> bool:
    """Whether *name* is, in any case, that of a column of Sluice's own."""
    is_ours = name.lower() in OF_SOURCES | OF_STAGES
    return is_ours or _COMPUTED.fullmatch(name.lower()) is not None


def check_columns(names: Iterable[str], owner: str, *, may_have: Iterable[str] = ()) -> None:
    """Check the columns that a user wrote, or that came of it; *owner* begins the message.

    *may_have* are reserved names that may be among them.

    Raises:
        ConfigurationError: a name is reserved, empty, a pattern, or there twice, in whatever case.
    """
    free = [name for name in names if name not in {*may_have}]
    for name in free:
        if not name.strip():
            raise ConfigurationError(f"{owner} has a column without a name; give it one")
        if is_reserved(name):
            raise _reserved(name, owner)
    _check_distinct(free, owner)


def check_reads(owner: str, texts: Iterable[str], *, may_read: Iterable[str] = ()) -> None:
    """Check the columns that a user's expressions, or names, read; *owner* begins the message.

    *may_read* are columns of ours that a user may read there.

    Raises:
        ConfigurationError: they read another one of them, which no row of the user's has.
    """
    hidden = OF_SOURCES - {*may_read}
    for text in texts:
        for part in parsed(text).parts:
            if isinstance(part, Column) and part.parts[0].lower() in hidden:
                raise ConfigurationError(
                    f"{owner} reads the column {part.parts[0]!r} in {text!r}, which is sluice's "
                    "own, and no column of the rows; read one of theirs"
                )


def check_source_columns(names: Iterable[str], owner: str) -> None:
    """Check the columns of rows that a source yields, as ``check_columns``.

    Raises:
        ConfigurationError: stages could not tell one of them from another, or from one of ours.
    """
    found = [*names]
    for name in found:
        if name.lower() in OF_SOURCES or _COMPUTED.fullmatch(name.lower()):
            raise _reserved(name, owner)
    _check_distinct(found, owner)


def _check_distinct(names: list[str], owner: str) -> None:
    seen = dict[str, str]()
    for name in names:
        if PATTERN.fullmatch(name):
            raise ConfigurationError(
                f"{owner} has a column {name!r}, which looks like a pattern of names; rename it"
            )
        if len(name) > 2 and name[0] == name[-1] == "`":
            raise ConfigurationError(
                f"{owner} has a column {name!r}; a name that stands alone has no backticks: write "
                f"{name[1:-1].replace('``', '`')!r}"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"{owner} has the columns {other!r} and {name!r}, which differ only in case: to "
                "SQL they are one; rename one"
            )
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{owner} has two columns {name!r}, which no stage can tell apart; rename one"
            )


def _reserved(name: str, owner: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner} has a column {name!r}, a name that sluice gives to a column of its own; rename "
        f"it, to {name.strip('_').lower()!r} or the like"
    )
