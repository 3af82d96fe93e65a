"""Spark's patterns of days and instants, such as ``yyyy-MM-dd HH:mm:ss``, as Polars has them.

Only runs of letters are known whose meaning is one for every day of the years 1 to 9999.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import polars as pl

from sluice.operators.sql_casts import (
    DAY,
    FORM,
    INVALID,
    TIMESTAMP,
    Converted,
    NoValue,
    calendar_day,
    near,
    time_of_day,
)

_PART = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<run>([A-Za-z])\3*)|(?P<sign>[^A-Za-z'#{}\[\]])")
_WRITTEN: Mapping[str, str] = {
    "yyyy": "%Y",
    "MM": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "E": "%a",
    "EEE": "%a",
    "EEEE": "%A",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%3f",
    "SSSSSS": "%6f",
}
_READ = ("yyyy", "MM", "dd", "HH", "mm", "ss")
# Signs that Java takes for another one, too, when it compares without case.
_OTHERWISE_WRITTEN = re.compile(r"[iks]|[^\x00-\x7f]", re.IGNORECASE)


def _parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """The runs of letters and the texts between them, and whether it is a run.

    Raises:
        ValueError: there is something else.
    """
    at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            raise ValueError(pattern[at])
        at = found.end()
        if found["run"] is not None:
            yield found["run"], True
        elif found["sign"] is not None:
            yield found["sign"], False
        else:
            yield (found["quoted"].replace("''", "'") or "'"), False


def formatted(at: pl.Expr, of: pl.DataType, pattern: str) -> Converted | None:
    """The text of a day or an instant; None if only Spark knows *pattern*."""
    try:
        parts = [*_parts(pattern)]
    except ValueError:
        return None
    runs = [_WRITTEN.get(part) if is_run else part.replace("%", "%%") for part, is_run in parts]
    known = [one for one in runs if one is not None]
    if len(known) < len(runs) or not known:
        return None
    found = near(at, of)
    return Converted(found.value.cast(TIMESTAMP).dt.strftime("".join(known)), found.stops)


def instant_in(text: pl.Expr, pattern: str) -> Converted | None:
    """The instant that *text* has by *pattern*; None if only Spark knows it."""
    try:
        parts = [*_parts(pattern)]
    except ValueError:
        return None
    runs = [part for part, is_run in parts if is_run]
    others = "".join(part for part, is_run in parts if not is_run)
    is_known = set(runs) <= {*_READ} and len(runs) == len({*runs}) and "yyyy" in runs
    if not is_known or ("dd" in runs and "MM" not in runs) or _OTHERWISE_WRITTEN.search(others):
        return None
    regex = "".join(_group(part) if is_run else _literal(part) for part, is_run in parts)
    groups = text.str.extract_groups(f"^{regex}$")
    year, month, day, hour, minute, second = (
        groups.struct.field(run).cast(pl.Int32()) if run in runs else _default(text, run)
        for run in _READ
    )
    is_read = year >= 1
    days = calendar_day(pl.when(is_read).then(year), month, day)
    at = days.cast(pl.Int32()).cast(pl.Int64()) * DAY + time_of_day(
        hour, minute, second, pl.lit(0, pl.Int64())
    )
    # Java reads years with a sign, and the year 0, too.
    other = regex.replace(_group("yyyy"), r"(?:[+-][0-9]{4,}|0000)")
    is_other = text.str.contains(f"^{other}$")
    return Converted(
        at.cast(TIMESTAMP),
        (NoValue(FORM, is_other), NoValue(INVALID, at.is_null() & ~is_other)),
    )


def _group(run: str) -> str:
    return f"(?<{run}>[0-9]{{{len(run)}}})"


def _literal(text: str) -> str:
    signs = (
        f"[{sign.upper()}{sign.lower()}]" if sign.isalpha() else _escaped(sign) for sign in text
    )
    return "".join(signs)


def _escaped(sign: str) -> str:
    return rf"\x{{{ord(sign):x}}}"


def _default(text: pl.Expr, run: str) -> pl.Expr:
    default = 1 if run in {"MM", "dd"} else 0
    return pl.when(text.is_not_null()).then(pl.lit(default, pl.Int32()))
