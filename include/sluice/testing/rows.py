"""Given rows, converted to one Arrow table per epoch, with the declared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa

from sluice.connectors.contracts.source import TextDecoding
from sluice.errors import ConfigurationError
from sluice.testing.arrow_types import INSTANT, as_spark_has_it, cast_column, column_of
from sluice.testing.declared import DeclaredRows

# A list of dicts or of texts; a frame of Polars, pandas, PyArrow or Spark; or a list of those.
Rows: TypeAlias = Any

FORMS = "give a list of dicts, a frame, or a list of those, one for each epoch"


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source by epoch; ``is_cut``: they were given by epoch."""

    chunks: tuple[pa.Table, ...]
    is_cut: bool
    decoding: TextDecoding | None = None  # The name of rows' only column when they are texts.


def source_rows(
    uid: str, given: Rows, declared: DeclaredRows, event_time: str | None
) -> SourceRows:
    """The rows *given*, with the columns that are declared.

    Raises:
        ConfigurationError: they have other columns, or an unknown form; the message names the row
            and the column.
    """
    parts, is_cut = _parts(uid, given)
    is_text = bool(declared.text) and any(map(_is_text, parts))
    if is_text:
        declared = replace(declared, schema=declared.text_schema)
        parts = [_lines(uid, part, declared.text) for part in parts]
    names = [_where(uid, number, len(parts)) for number in range(1, len(parts) + 1)]
    schema = declared.schema or _schema_of(uid, parts, event_time)
    if declared.schema is not None:
        _check_columns(uid, parts, schema, declared)
    chunks, first = [], 0
    for part, where in zip(parts, names, strict=True):
        chunks.append(_conformed(part, schema, declared, where, first))
        first += chunks[-1].num_rows
    return SourceRows(tuple(chunks), is_cut, declared.decoding if is_text else None)


def check_cut(*, epochs: int | None, rows_per_epoch: int | None) -> None:
    """Raises ConfigurationError when both are given, or one is less than 1."""
    if epochs is not None and rows_per_epoch is not None:
        raise ConfigurationError(
            "epochs= and rows_per_epoch= both say where rows are cut; give one of the two"
        )
    for name, count in (("epochs", epochs), ("rows_per_epoch", rows_per_epoch)):
        if count is not None and count < 1:
            raise ConfigurationError(f"{name} is {count}; give 1 or more")


def cut(rows: SourceRows, *, epochs: int | None, rows_per_epoch: int | None) -> SourceRows:
    """*rows*, cut into *epochs* equal parts or by *rows_per_epoch*, unless given by epoch."""
    if rows.is_cut or (epochs is None and rows_per_epoch is None):
        return rows
    (whole,) = rows.chunks
    count = whole.num_rows
    if epochs is not None:
        bounds = [count * epoch // epochs for epoch in range(epochs + 1)]
    else:
        assert rows_per_epoch is not None
        bounds = [*range(0, max(count, 1), rows_per_epoch), count]
    return cut_at(rows, bounds[1:-1])


def cut_at(rows: SourceRows, bounds: Sequence[int]) -> SourceRows:
    """*rows*, of one chunk, cut before the rows of these ascending numbers."""
    (whole,) = rows.chunks
    ends = [0, *bounds, whole.num_rows]
    pieces = tuple(whole.slice(start, end - start) for start, end in pairwise(ends))
    return replace(rows, chunks=pieces)


def _parts(uid: str, given: Rows) -> tuple[list[Any], bool]:
    """The parts, lists of dicts or texts and Arrow tables, and whether there is one per epoch."""
    if not isinstance(given, list | tuple):
        return [_table(uid, given)], False
    if not given or isinstance(given[0], Mapping | str | bytes):
        return [_listed(uid, given)], False
    return [
        _listed(uid, one) if isinstance(one, list | tuple) else _table(uid, one) for one in given
    ], True


def _listed(uid: str, rows: Sequence[Any]) -> list[Any]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping | str | bytes) or isinstance(row, str | bytes) != isinstance(
            rows[0], str | bytes
        ):
            raise ConfigurationError(
                f"row {number} of source {uid!r} is {row!r}; a row is a dict of its columns"
            )
    return list(rows)


def _table(uid: str, frame: Rows) -> pa.Table:
    if hasattr(frame, "toArrow"):  # Spark's.
        return frame.toArrow()
    if type(frame).__module__.startswith("pandas"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if type(frame).__name__ == "LazyFrame":
        frame = frame.collect()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    raise ConfigurationError(
        f"the rows of source {uid!r} are {type(frame).__name__!r}, which is no form "
        f"of rows; {FORMS}"
    )


def _is_text(part: Any) -> bool:  # noqa: ANN401 - see Rows
    return isinstance(part, list) and bool(part) and isinstance(part[0], str | bytes)


def _lines(uid: str, part: Any, column: str) -> list[dict[str, Any]]:  # noqa: ANN401 - see Rows
    if isinstance(part, list) and (not part or _is_text(part)):
        return [{column: text} for text in part]
    raise ConfigurationError(
        f"some rows of source {uid!r} are texts, and others are not; give texts in every epoch, or "
        "in none"
    )


def _where(uid: str, number: int, count: int) -> str:
    return f"source {uid!r}" if count == 1 else f"source {uid!r} in epoch {number}"


def _names(part: Any) -> list[str]:  # noqa: ANN401 - see Rows
    if isinstance(part, pa.Table):
        return list(part.column_names)
    return list(dict.fromkeys(name for row in part for name in row))


def _check_columns(
    uid: str, parts: Sequence[Any], schema: pa.Schema, declared: DeclaredRows
) -> None:
    """Refuse columns that are not declared, and declared ones that no row has."""
    given = list(dict.fromkeys(name for part in parts for name in _names(part)))
    if unknown := [name for name in given if name not in schema.names]:
        close = get_close_matches(unknown[0], schema.names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigurationError(
            f"the rows of source {uid!r} have a column {unknown[0]!r}{hint}; it is declared with "
            f"{', '.join(schema.names)}"
        )
    if not any(map(len, parts)):
        return
    if missing := [name for name in schema.names if name not in (*given, *declared.fills)]:
        raise ConfigurationError(
            f"no row of source {uid!r} has the column {missing[0]!r}, with which it is declared; "
            "give it, as None where a row has none"
        )


def _schema_of(uid: str, parts: Sequence[Any], event_time: str | None) -> pa.Schema:
    """The union of the columns of all epochs."""
    tables = [part for part in parts if isinstance(part, pa.Table)]
    listed = [row for part in parts if not isinstance(part, pa.Table) for row in part]
    try:
        known = [table.schema for table in tables]
        if listed:
            known.append(_inferred(uid, listed))
        whole = pa.unify_schemas(known or [pa.schema([])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"the rows of source {uid!r} make no table: {error}; give one type for each column"
        ) from error
    if not whole.names:
        raise ConfigurationError(
            f"nothing says which columns source {uid!r} has, as there is no row of it; give an "
            'empty frame with columns, such as polars.DataFrame(schema={"id": polars.Int64})'
        )
    fields = []
    for one in whole:
        dtype = as_spark_has_it(one.type)
        is_instant = one.name == event_time and pa.types.is_timestamp(dtype)
        fields.append(pa.field(one.name, INSTANT if is_instant else dtype))
    return pa.schema(fields)


def _inferred(uid: str, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The columns by first appearance, each with the type that holds all of its values."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema(
        [pa.field(name, _type_of(uid, name, [row.get(name) for row in rows])) for name in names]
    )


def _type_of(uid: str, name: str, values: Sequence[Any]) -> pa.DataType:
    try:
        return pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        known = pa.null()
        for row, value in enumerate(values, 1):
            try:
                known = pa.array(values[:row]).type
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise ConfigurationError(
                    f"row {row} of source {uid!r} has {value!r} in column {name!r}, which is "
                    f"{known} in the rows before; give one type for each column"
                ) from error
        raise


def _conformed(
    part: Any,  # noqa: ANN401 - see Rows
    schema: pa.Schema,
    declared: DeclaredRows,
    where: str,
    first: int,
) -> pa.Table:
    count, given = len(part), set(_names(part))
    columns = []
    for one in schema:
        if one.name not in given and one.name in declared.fills:
            columns.append(declared.fills[one.name](first, count).cast(one.type))
        elif one.name not in given:
            columns.append(pa.nulls(count, one.type))
        elif isinstance(part, pa.Table):
            columns.append(cast_column(part[one.name], one.type, one.name, where))
        else:
            values = [row.get(one.name) for row in part]
            columns.append(column_of(values, one.type, one.name, where))
    return pa.Table.from_arrays(columns, schema=schema)
