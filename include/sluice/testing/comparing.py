"""Comparison of two frames as sets of rows."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import polars as pl

from sluice.declaration.changelog import ROW_KIND, RowKind

SHOWN = 3
# The digits of a float that are compared: the last ones depend on the order of additions.
DIGITS = 9


def difference(expected: pl.DataFrame, got: pl.DataFrame) -> str | None:
    """The difference in words; None if the frames are equal."""
    if not expected.height and not got.height:
        return None
    if sorted(expected.columns) != sorted(got.columns):
        return f"it has the columns {got.columns} where undisturbed it has {expected.columns}"
    wanted, found = _rows(expected), _rows(got.select(expected.columns))
    missing, extra = _unmatched(
        list((wanted - found).elements()), list((found - wanted).elements())
    )
    if not missing and not extra:
        return None
    lines = [f"{len(missing)} rows are missing, {len(extra)} too many"]
    lines += [f"    - {dict(zip(expected.columns, row, strict=True))}" for row in missing[:SHOWN]]
    lines += [f"    + {dict(zip(expected.columns, row, strict=True))}" for row in extra[:SHOWN]]
    return "\n".join(lines)


def left_by(changelog: pl.DataFrame) -> pl.DataFrame:
    """The rows that remain after a changelog is applied.

    A row that is taken back without having been added is kept, with its kind.
    """
    rows = changelog.drop(ROW_KIND)
    added = {RowKind.INSERT.value, RowKind.UPDATE_AFTER.value}
    weights: Counter[tuple[Any, ...]] = Counter()
    place: dict[tuple[Any, ...], int] = {}
    kinds = changelog[ROW_KIND].to_list()
    for index, (kind, row) in enumerate(zip(kinds, rows.rows(), strict=True)):
        key = tuple(_plain(value) for value in row)
        weights[key] += 1 if kind in added else -1
        place.setdefault(key, index)
    left = [place[row] for row, weight in weights.items() for _ in range(abs(weight))]
    return changelog[left].with_columns(
        pl.Series(ROW_KIND, [weights[_key(rows, index)] > 0 for index in left], pl.Boolean())
    )


def _key(rows: pl.DataFrame, index: int) -> tuple[Any, ...]:
    return tuple(_plain(value) for value in rows.row(index))


def _rows(frame: pl.DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_plain(value) for value in row) for row in frame.rows())


def _plain(value: Any) -> Any:  # noqa: ANN401 - a row's
    """*value* in a form that compares and hashes: NaN equals NaN, and -0.0 equals 0.0."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case list():
            return tuple(map(_plain, value))
        case dict():
            return tuple((name, _plain(one)) for name, one in value.items())
        case _:
            return value


def _unmatched(
    missing: list[tuple[Any, ...]], extra: list[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows that remain after pairing those that differ only in the last digits of floats."""
    left = []
    for row in missing:
        twin = next((other for other in extra if _is_near(row, other)), None)
        if twin is None:
            left.append(row)
        else:
            extra.remove(twin)
    return left, extra


def _is_near(one: Any, other: Any) -> bool:  # noqa: ANN401 - values of a row
    match one, other:
        case float(), float():
            return math.isclose(one, other, rel_tol=10**-DIGITS, abs_tol=10**-DIGITS)
        case tuple(), tuple():
            return len(one) == len(other) and all(map(_is_near, one, other))
        case _:
            return bool(one == other)
