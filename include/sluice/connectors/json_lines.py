"""Lines of JSON decoded by Arrow, where it can be shown that Spark's ``from_json`` gives the same.

A block is decoded as a whole, or it is undecided: then Spark decides line by line which of its
lines are malformed, and what they hold.  Arrow's parser is the stricter of the two, and what it
refuses is undecided.  So is text that Arrow accepts and Spark refuses, or reads otherwise: several
objects in a line, ``Inf``, a zero with a sign, and lines too deep or too long for Spark's parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.plain_types import check_bytes, check_numbers, of_text, plain_type
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.places import TextDecoding, UndecidedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Spark's parser refuses numbers of more than 1000 characters, 1000 levels, names of 50,000.
SHORT_LINE_BYTES = 900
MANY_LEVELS = 900
LONG_LINE_BYTES = 50_000

_LONG_NUMBER = re.compile(rb"[-+.eE0-9]{900}")
_NOT_A_NUMBER = re.compile(rb"[:,\[]\s*[-+]?(?:NaN|I)")


@dataclass(frozen=True, slots=True)
class PlainJson:
    """Lines of objects of the columns of ``schema``."""

    schema: pa.Schema

    def decoded(self, whole: bytes) -> pa.Table:
        """The rows of *whole* lines, of which the last has lost its newline; blank ones are none.

        Raises:
            UndecidedError: Spark might read one of the lines otherwise.
        """
        import pyarrow as pa
        import pyarrow.json as pj

        objects = _lines_of_one_object(whole)
        if objects == 0:
            return self.schema.empty_table()
        read = pa.schema([field.with_type(_read_type(field.type)) for field in self.schema])
        try:
            table = pj.read_json(
                pa.BufferReader(whole),
                # One block: Arrow takes newlines for the ends of objects only between blocks.
                read_options=pj.ReadOptions(use_threads=False, block_size=len(whole) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=read, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowException as error:
            raise UndecidedError(str(error)) from error
        if table.num_rows != objects or not table.schema.equals(read):
            raise UndecidedError("several objects in one line")
        columns = [column.combine_chunks() for column in table.columns]
        for column in columns:
            check_numbers(column)
        typed = [_typed(one, field.type) for one, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(typed, schema=self.schema)


def plain_json(how: TextDecoding) -> PlainJson | None:
    """The decoder of lines of JSON; None if only Spark can decode them."""
    import pyarrow as pa

    if how.options:
        return None
    columns = row_schema("the source", how.schema)
    types = {name: _json_type(column) for name, column in columns.items()}
    return None if None in types.values() else PlainJson(pa.schema(list(types.items())))


def _json_type(column: ColumnType) -> pa.DataType | None:
    """``plain_type``, structs, and those arrays that Arrow reads as they are."""
    import pyarrow as pa

    match column.name:
        case "struct" if column.fields:
            fields = {name: _json_type(inner) for name, inner in column.fields}
            return None if None in fields.values() else pa.struct(list(fields.items()))
        case "array":
            ((_, inner),) = column.fields
            kind = _json_type(inner)
            if kind is None or _read_type(kind) != kind:
                return None
            return pa.list_(pa.field("element", kind))
        case _:
            return plain_type(column)


def _read_type(kind: pa.DataType) -> pa.DataType:
    """*kind* as Arrow's parser reads it: dates and times are read as text first."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        return pa.struct([field.with_type(_read_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_type(kind.value_type)))
    return pa.string() if types.is_temporal(kind) else kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """*column*, of ``_read_type``, as *kind*.  Raises UndecidedError as ``of_text`` does."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if not pa.types.is_struct(kind):
        return of_text(column, kind)
    fields = [_typed(one, field.type) for one, field in zip(column.flatten(), kind, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())


def _lines_of_one_object(whole: bytes) -> int:
    """The number of lines that are not blank; each begins and ends with a brace.

    So no object goes over a line's end.

    Raises:
        UndecidedError: a line has no braces, or the two parsers may read the text differently.
    """
    import numpy as np

    if not whole:
        return 0
    check_bytes(whole)
    if (_has(whole, b"NaN") or _has(whole, b"Inf")) and _NOT_A_NUMBER.search(whole):
        raise UndecidedError("not a number")
    letters = np.frombuffer(whole, np.uint8)
    ends = np.append(np.flatnonzero(letters == ord("\n")), len(whole))
    starts = np.append(0, ends[:-1] + 1)
    ends = ends - ((ends > starts) & (letters[ends - 1] == ord("\r")))
    is_there = ends > starts
    starts, ends = starts[is_there], ends[is_there]
    if (letters[starts] != ord("{")).any() or (letters[ends - 1] != ord("}")).any():
        raise UndecidedError("a line that is no object")
    _check_lengths(whole, starts, ends)
    return len(starts)


def _has(text: bytes, word: bytes) -> bool:
    """Whether *word* is in *text*: one byte is found in a tenth of the time of three."""
    first = text.find(word[:1])
    return first >= 0 and text.find(word, first) >= 0


def _check_lengths(whole: bytes, starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> None:
    """Raises UndecidedError if a line may be too deep, or its numbers or names too long."""
    import numpy as np

    for line in np.flatnonzero(ends - starts >= SHORT_LINE_BYTES).tolist():
        text = whole[starts[line] : ends[line]]
        is_deep = text.count(b"{") + text.count(b"[") >= MANY_LEVELS
        if is_deep or len(text) > LONG_LINE_BYTES or _LONG_NUMBER.search(text):
            raise UndecidedError("a line beyond the limits of Spark's parser")
