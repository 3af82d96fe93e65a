"""Lines of JSON decoded by Arrow, where it can be shown that Spark's ``from_json`` gives the same.

A block is decoded as a whole, or it is undecided: then Spark decides line by line which of its
lines are malformed, and what they hold.  Arrow's parser is the stricter of the two, and what it
refuses is undecided.  So is text that Arrow accepts and Spark refuses, or reads otherwise: several
objects in a line, ``Inf``, a zero with a sign, and lines too deep or too long for Spark's parser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.places import END, TextDecoding, UndecidedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Spark's parser refuses numbers of more than 1000 characters, 1000 levels, names of 50,000.
SHORT_LINE_BYTES = 900
MANY_LEVELS = 900
LONG_LINE_BYTES = 50_000

# Words beside a column's type that may change what its values are.
_REMARK = re.compile(r"\b(?:collate|default|not|generated)\b", re.IGNORECASE)
_LONG_NUMBER = re.compile(rb"[-+.eE0-9]{900}")
_NOT_A_NUMBER = re.compile(rb"[:,\[]\s*[-+]?(?:NaN|I)")


def plain_schema(how: TextDecoding | None) -> pa.Schema | None:
    """The columns of *how* if Arrow can decode its lines of JSON; None if only Spark can."""
    import pyarrow as pa

    if how is None or how.format != "json" or how.options or _REMARK.search(how.schema):
        return None
    columns = row_schema("the source", how.schema)
    types = {name: _arrow_type(column) for name, column in columns.items()}
    if None in types.values():
        return None
    return pa.schema(list(types.items()))


def _arrow_type(column: ColumnType) -> pa.DataType | None:
    """The type as Spark hands it to Python; None where the two parsers may read text differently.

    That is so for numbers below 32 bits, decimals, times and arrays.
    """
    import pyarrow as pa

    match column.name:
        case "bigint":
            return pa.int64()
        case "int":
            return pa.int32()
        case "double":
            return pa.float64()
        case "boolean":
            return pa.bool_()
        case "string":
            return pa.string()
        case "struct" if column.fields:
            fields = {name: _arrow_type(inner) for name, inner in column.fields}
            return None if None in fields.values() else pa.struct(list(fields.items()))
        case _:
            return None


def decoded_lines(whole: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of *whole* lines, of which the last has lost its newline; blank ones are none.

    Raises:
        UndecidedError: Spark might read one of the lines otherwise.
    """
    import pyarrow as pa
    import pyarrow.json as pj

    objects = _lines_of_one_object(whole)
    if objects == 0:
        return schema.empty_table()
    try:
        table = pj.read_json(
            pa.BufferReader(whole),
            # One block: Arrow takes newlines for the ends of objects only between blocks.
            read_options=pj.ReadOptions(use_threads=False, block_size=len(whole) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowException as error:
        raise UndecidedError(str(error)) from error
    if table.num_rows != objects or not table.schema.equals(schema):
        raise UndecidedError("several objects in one line")
    for column in table.columns:
        _check_reals(column)
    return table


def decoded_texts(lines: bytes, texts: int, schema: pa.Schema) -> pa.Table:
    """The objects in so many *texts*, one a row, which are the *lines*.

    Raises:
        UndecidedError: Spark might read one of them otherwise, or one is blank and no row.
    """
    if lines.count(b"\n") != texts - 1:
        raise UndecidedError("a text of several lines")
    rows = decoded_lines(lines, schema)
    if rows.num_rows != texts:
        raise UndecidedError("a blank text")
    return rows


def with_objects(rows: pa.RecordBatch, column: str, name: str, schema: pa.Schema) -> pa.RecordBatch:
    """*rows* with the objects of the texts in *column* in a new column *name*.

    Either the objects or the texts are null: the objects if Spark might read one of the texts
    otherwise.
    """
    import pyarrow as pa

    place = rows.schema.get_field_index(column)
    texts, kind = rows.column(place), pa.struct(list(schema))
    try:
        objects = _objects(texts, schema)
    except UndecidedError:
        return rows.append_column(pa.field(name, kind), pa.nulls(len(texts), kind))
    columns = [*rows.columns, objects]
    columns[place] = pa.nulls(len(texts), texts.type)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema.append(pa.field(name, kind)))


def _objects(texts: pa.Array, schema: pa.Schema) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    (lines,) = pc.binary_join(whole, "\n")
    if not lines.is_valid:
        raise UndecidedError("no text")
    rows = decoded_texts(lines.as_buffer().to_pybytes(), len(texts), schema)
    return rows.combine_chunks().to_struct_array().combine_chunks()


def _lines_of_one_object(whole: bytes) -> int:
    """The number of lines that are not blank; each begins and ends with a brace.

    So no object goes over a line's end.

    Raises:
        UndecidedError: a line has no braces, or the two parsers may read the text differently.
    """
    import numpy as np

    if not whole:
        return 0
    if END.encode() in whole or b"\0" in whole:
        raise UndecidedError("reserved characters")
    if not whole.isascii():
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            raise UndecidedError("not UTF-8") from error
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


def _check_reals(column: pa.ChunkedArray) -> None:
    """Raises UndecidedError for a zero with a sign, which Spark drops, and what is not finite."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        for chunk in column.chunks:
            for field in chunk.flatten():
                _check_reals(pa.chunked_array([field]))
    elif pa.types.is_floating(column.type):
        values = column.drop_null().to_numpy()
        if not np.isfinite(values).all() or (np.signbit(values) & (values == 0)).any():
            raise UndecidedError("a number that is not finite, or a negative zero")
