"""Whether two tables hold the same rows, in whatever order, of the same types."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

TOLERANT = "fsum"  # In the names of columns that add floats: their last bits may differ.
SHOWN = 6


def added_up(changelog: pa.Table) -> pa.Table:
    """The rows that a changelog leaves; one that is taken back more often than added is one more,
    so that nothing hides.
    """
    if "kind" not in changelog.column_names:
        return changelog
    kinds = changelog.column("kind").to_pylist()
    rows = changelog.drop_columns(["kind"])
    weights: Counter[tuple[Any, ...]] = Counter()
    first: dict[tuple[Any, ...], int] = {}
    plain = [False for _ in rows.column_names]  # What is taken back is exactly what was sent.
    for place, (kind, row) in enumerate(zip(kinds, _tuples(rows), strict=True)):
        key = _row(row, plain)
        first.setdefault(key, place)
        weights[key] += 1 if kind in ("+I", "+U") else -1
    left = [first[row] for row, weight in weights.items() for _ in range(abs(weight))]
    return rows.take(pa.array(left, pa.int64()))


def difference(expected: pa.Table, got: pa.Table) -> str | None:
    """The difference in words; None if the frames are equal."""
    if not got.column_names and not expected.num_rows:
        return None  # Nothing was ever published.
    names = expected.column_names
    if sorted(names) != sorted(got.column_names):
        return f"columns {sorted(got.column_names)}, expected {sorted(names)}"
    got = got.select(names)
    for name in names:
        wanted, given = _kind(expected.schema.field(name).type), _kind(got.schema.field(name).type)
        if wanted != given:
            return f"column {name} is of type {given}, expected {wanted}"
    return _rows(expected, got)


def left_out_difference(expected: pa.Table, got: pa.Table) -> str | None:
    """The difference of a side output, whose rows may have more columns, such as the origin."""
    if got.num_rows != expected.num_rows:
        return f"{got.num_rows} rows, expected {expected.num_rows}"
    shared = [name for name in expected.column_names if name in got.column_names]
    return difference(expected.select(shared), got.select(shared))


def _rows(expected: pa.Table, got: pa.Table) -> str | None:
    tolerant = [TOLERANT in name for name in expected.column_names]
    wanted = Counter(_row(row, tolerant) for row in _tuples(expected))
    given = Counter(_row(row, tolerant) for row in _tuples(got))
    missing, extra = list((wanted - given).elements()), list((given - wanted).elements())
    if any(tolerant):
        missing, extra = _unmatched(missing, extra)
    if not missing and not extra:
        return None
    lines = [f"columns {', '.join(expected.column_names)}"]
    lines += [f"{len(missing)} missing: {row}" for row in sorted(missing, key=repr)[:SHOWN]]
    lines += [f"{len(extra)} too many: {row}" for row in sorted(extra, key=repr)[:SHOWN]]
    return "\n    ".join(lines)


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _row(row: tuple[Any, ...], tolerant: list[bool]) -> tuple[Any, ...]:
    return tuple(
        _Near(value)
        if near and isinstance(value, float) and math.isfinite(value)
        else _plain(value)
        for value, near in zip(row, tolerant, strict=True)
    )


class _Near:
    """A float whose last bits do not count; rounded it hashes alike in most cases."""

    __slots__ = ("rounded", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self.rounded = f"{value + 0.0:.7e}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Near) and self.rounded == other.rounded

    def __hash__(self) -> int:
        return hash(self.rounded)

    def __repr__(self) -> str:
        return repr(self.value)

    def is_near(self, other: object) -> bool:
        return isinstance(other, _Near) and math.isclose(
            self.value, other.value, rel_tol=1e-9, abs_tol=1e-9
        )


def _unmatched(
    missing: list[tuple[Any, ...]], extra: list[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    left = []
    for row in missing:
        twin = next((other for other in extra if _near(row, other)), None)
        if twin is None:
            left.append(row)
        else:
            extra.remove(twin)
    return left, extra


def _near(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(
        a == b or (isinstance(a, _Near) and a.is_near(b)) for a, b in zip(one, other, strict=True)
    )


def _plain(value: Any) -> Any:
    """NaN equals NaN, -0.0 equals 0.0; what is hashable."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case list():
            return tuple(map(_plain, value))
        case dict():
            return tuple((name, _plain(inner)) for name, inner in value.items())
        case datetime():
            return value.astimezone(UTC).isoformat()
        case _:
            return value


def _kind(of: pa.DataType) -> str:
    """The kind of a type; large and small texts and lists are the same to readers."""
    if pa.types.is_large_string(of) or pa.types.is_string(of) or pa.types.is_string_view(of):
        return "string"
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return f"list<{_kind(of.value_type)}>"
    if pa.types.is_struct(of):
        return "struct<" + ", ".join(f"{f.name}: {_kind(f.type)}" for f in of) + ">"
    if pa.types.is_timestamp(of):
        return f"timestamp {of.tz}"
    return str(of)
