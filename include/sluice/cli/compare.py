"""``sluice compare``: two tables, row by row, as when a pipeline takes a script's place.

A table is a folder of Parquet files, with columns in the names of its folders or without, or a
``FilesTable`` by its location.  Both are read into memory.  The command ends with DIFFERENT unless
they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sluice.cli.options import AsJson, EndpointUrl, print_json, print_line
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    import polars as pl

DIFFERENT = 2  # The exit code; 1 is that of a mistake.
MOST_SHOWN = 5
_RIGHT, _COPIES = "\0right", "\0copies"  # Which no column is called.


def compare_tables(
    table_a: Annotated[str, typer.Argument(help="A folder of Parquet files, or a FilesTable's.")],
    table_b: Annotated[str, typer.Argument(help="The other one.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A column that identifies a row; repeat it.")
    ] = None,
    as_json: AsJson = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Compare two tables: rows that TABLE_B lacks, has besides, or has otherwise."""
    keys = tuple(key or ())
    a, b = (_read(place, keys, endpoint_url) for place in (table_a, table_b))
    found = _compared(a, b, keys)
    if as_json:
        print_json(found)
    else:
        for line in _lines_of(found):
            print_line(line)
    if not found.are_equal:
        raise typer.Exit(DIFFERENT)


def _read(place: str, keys: tuple[str, ...], endpoint_url: str | None) -> pl.DataFrame:
    from sluice.state.segments import to_frame

    root = place if "://" in place else f"file://{Path(place).resolve()}"
    location = StoreLocation(root=root, endpoint_url=endpoint_url)
    table = FilesTable(upsert_key=keys).open("compared", {}, location)
    if table.size().version is not None:
        return to_frame(table.read())
    import pyarrow as pa

    source = Files(place, "parquet").open({}, endpoint_url)
    plan = source.plan((), max_records=None, parallelism=1)
    source = source.settled(entry.partition for entry in plan.position)
    batches = [batch for piece in plan.slices for batch in source.read(piece)]
    return to_frame(pa.Table.from_batches(batches, source.schema()))


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by their key, or, without a key, by all columns; ``*_columns`` are in one table alone.

    ``examples`` are some of the keys, or rows, that are not the same.
    """

    rows_a: int
    rows_b: int
    missing: int
    extra: int
    different: int
    missing_columns: tuple[str, ...]
    extra_columns: tuple[str, ...]
    different_columns: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def are_equal(self) -> bool:
        return not (
            self.missing
            or self.extra
            or self.different
            or self.missing_columns
            or self.extra_columns
        )


def _compared(a: pl.DataFrame, b: pl.DataFrame, keys: Sequence[str]) -> Comparison:
    """Raises ConfigurationError if a table lacks a key, or has two rows of one; or if they have no
    column in common, or one of types that cannot be compared.
    """
    import polars as pl

    for frame, name in ((a, "the first table"), (b, "the second table")):
        for key in keys:
            if key not in frame.columns:
                raise ConfigurationError(
                    f"{name} has no column {key!r} for --key; it has {', '.join(frame.columns)}"
                )
        if keys and (twice := frame.filter(pl.struct(keys).is_duplicated())).height:
            row = _shown(twice.select(keys).row(0, named=True))
            raise ConfigurationError(
                f"{name} has several rows of {row}, so --key does not identify a row; add columns, "
                "or leave --key out"
            )
    shared = [name for name in a.columns if name in b.columns]
    if not shared:
        raise ConfigurationError(
            f"the tables have no column in common: {', '.join(a.columns)} and "
            f"{', '.join(b.columns)}; name two that have"
        )
    kinds = {name: _common_type(name, a.schema[name], b.schema[name]) for name in shared}
    by = list(keys) or shared
    left, right = (_counted(frame.select(shared).cast(kinds), by) for frame in (a, b))  # type: ignore[arg-type]
    joined = left.join(
        right, on=by, how="full", nulls_equal=True, coalesce=True, suffix=_RIGHT
    ).with_columns(pl.col(_COPIES, f"{_COPIES}{_RIGHT}").fill_null(0))
    surplus = pl.col(_COPIES) - pl.col(f"{_COPIES}{_RIGHT}")
    lacking, besides = joined.filter(surplus > 0), joined.filter(surplus < 0)
    values = [name for name in shared if name not in by]
    differs = [pl.col(name).ne_missing(pl.col(f"{name}{_RIGHT}")).alias(name) for name in values]
    both = joined.filter(surplus == 0)
    other = both.filter(pl.any_horizontal(differs)) if differs else both.clear()
    found = {"missing": lacking, "extra": besides, "different": other}
    return Comparison(
        rows_a=a.height,
        rows_b=b.height,
        missing=int(lacking.select(surplus.sum()).item() or 0),
        extra=-int(besides.select(surplus.sum()).item() or 0),
        different=other.height,
        missing_columns=tuple(name for name in a.columns if name not in shared),
        extra_columns=tuple(name for name in b.columns if name not in shared),
        different_columns=tuple(
            name for name, one in zip(values, differs, strict=True) if other.filter(one).height
        ),
        examples=tuple(
            f"{how}: {_shown(row)}"
            for how, frame in found.items()
            for row in frame.select(by).sort(by).head(MOST_SHOWN).to_dicts()
        ),
    )


def _lines_of(found: Comparison) -> list[str]:
    if found.are_equal:
        return [f"the tables are equal: {found.rows_a} rows"]
    lines = [f"the first table has {found.rows_a} rows, the second {found.rows_b}"]
    lines += [f"column {name!r} is missing in the second" for name in found.missing_columns]
    lines += [f"column {name!r} is in the second alone" for name in found.extra_columns]
    lines.append(
        f"rows missing in the second: {found.missing}; extra: {found.extra}; "
        f"different: {found.different}"
    )
    if found.different_columns:
        lines.append(f"they differ in {', '.join(found.different_columns)}")
    return lines + [f"  {example}" for example in found.examples]


def _common_type(name: str, a: pl.DataType, b: pl.DataType) -> pl.DataType:
    """The type that has the values of both; units of time and digits are no difference."""
    import polars as pl

    if a == b:
        return a
    match a, b:
        case pl.Datetime(), pl.Datetime() if a.time_zone == b.time_zone:
            return min(a, b, key=lambda kind: ("ns", "us", "ms").index(kind.time_unit))
        case pl.Decimal(), pl.Decimal():
            return pl.Decimal(38, max(a.scale, b.scale))
        case _ if (a.is_integer() and b.is_integer()) or (a.is_float() and b.is_float()):
            return pl.Int128() if a.is_integer() else pl.Float64()
        case _:
            raise ConfigurationError(
                f"column {name!r} is {a} in the first table and {b} in the second, which cannot be "
                "compared; write one as the other"
            )


def _counted(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    return frame.group_by(by).agg(pl.len().cast(pl.Int64).alias(_COPIES), pl.all().first())


def _shown(row: dict[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row.items())
