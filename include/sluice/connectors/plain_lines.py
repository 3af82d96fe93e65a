"""Lines of JSON or CSV that Arrow decodes where it is certain what Spark makes of them.

A block is decoded as a whole, or it is undecided: then Spark decides line by line which of its
lines are malformed, and what they hold.

JSON: Arrow's parser is the stricter of the two, and what it refuses is undecided.  So is text that
Arrow accepts and Spark refuses, or reads otherwise: several objects in a line, ``Inf``, a zero with
a sign, and lines too deep or too long for Spark's parser.

CSV: fields are cut at the delimiters; a quote is known only as the first and the last letter of a
field, or twice within.

Of each type Python knows the usual forms: a date is ``2026-03-01``, a timestamp has seconds, up to
six digits of a fraction, and ``Z``, an offset such as ``+02:00``, or nothing, which is UTC.  Spark
knows more forms, such as ``2026-3-1``; such text is undecided.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.connectors.columns import DAY, FIRST_DAY, arrow_type
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.places import END, TextDecoding, UndecidedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Words beside a column's type that may change what its values are.
_REMARK = re.compile(r"\b(?:collate|default|not|generated)\b", re.IGNORECASE)

# Spark's parser refuses numbers of more than 1000 characters, 1000 levels, names of 50,000.
SHORT_LINE_BYTES = 900
MANY_LEVELS = 900
LONG_LINE_BYTES = 50_000

_LONG_NUMBER = re.compile(rb"[-+.eE0-9]{900}")
_NOT_A_NUMBER = re.compile(rb"[:,\[]\s*[-+]?(?:NaN|I)")

_OPTIONS = {"sep", "quote", "escape", "nullValue"}  # Those that every declaration has.
_NO_DELIMITERS = " \n\r\0-+."

_PLAIN = frozenset(
    {
        *("bigint", "int", "smallint", "tinyint", "double", "boolean", "string"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
_DIGITS = b"0123456789"
_WHOLE, _REAL = _DIGITS + b"-", _DIGITS + b"-+.eE"
_DATE_LETTERS = 10
_TIME_LETTERS = 19  # Of ``2026-03-01T10:00:00``, where a fraction or a zone may follow.
_LAST_OFFSET_HOUR = 17  # Spark knows zones of up to 18 hours, Arrow of up to 23.


class PlainLines(Protocol):
    """A decoder of lines to the columns of ``schema``, pickled for Spark's workers."""

    @property
    def schema(self) -> pa.Schema: ...

    def decoded(self, whole: bytes) -> pa.Table:
        """The rows of *whole* lines, of which the last has lost its newline; empty ones are none.

        Raises:
            UndecidedError: Spark might read one of the lines otherwise.
        """
        ...


def plain_lines(how: TextDecoding | None) -> PlainLines | None:
    """The decoder of the lines of *how*; None if only Spark can decode them."""
    if how is None or _REMARK.search(how.schema):
        return None
    return plain_json(how) if how.format == "json" else plain_csv(how)


def decoded_texts(lines: bytes, texts: int, plain: PlainLines) -> pa.Table:
    """The rows in so many *texts*, one a row, which are the *lines*.

    Raises:
        UndecidedError: Spark might read one of them otherwise, or one is blank and no row.
    """
    if lines.count(b"\n") != texts - 1:
        raise UndecidedError("a text of several lines")
    rows = plain.decoded(lines)
    if rows.num_rows != texts:
        raise UndecidedError("a blank text")
    return rows


def with_objects(rows: pa.RecordBatch, column: str, name: str, plain: PlainLines) -> pa.RecordBatch:
    """*rows* with the objects of the texts in *column* in a new column *name*.

    Either the objects or the texts are null: the objects if Spark might read one of the texts
    otherwise.
    """
    import pyarrow as pa

    place = rows.schema.get_field_index(column)
    texts, kind = rows.column(place), pa.struct(list(plain.schema))
    try:
        objects = _objects(texts, plain)
    except UndecidedError:
        return rows.append_column(pa.field(name, kind), pa.nulls(len(texts), kind))
    columns = [*rows.columns, objects]
    columns[place] = pa.nulls(len(texts), texts.type)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema.append(pa.field(name, kind)))


def _objects(texts: pa.Array, plain: PlainLines) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    (lines,) = pc.binary_join(whole, "\n")
    if not lines.is_valid:
        raise UndecidedError("no text")
    rows = decoded_texts(lines.as_buffer().to_pybytes(), len(texts), plain)
    return rows.combine_chunks().to_struct_array().combine_chunks()


@dataclass(frozen=True, slots=True)
class PlainJson:
    """Lines of objects of the columns of ``schema``."""

    schema: pa.Schema

    def decoded(self, whole: bytes) -> pa.Table:
        """See ``PlainLines``."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCsv:
    """Lines of the columns of ``schema``; the others are those of ``Files``."""

    schema: pa.Schema
    delimiter: str
    quote: str
    escape: str
    null_value: str

    def decoded(self, whole: bytes) -> pa.Table:
        """See ``PlainLines``."""
        import pyarrow as pa
        import pyarrow.csv as pcsv

        rows = self._rows_in(whole)
        if rows == 0:
            return self.schema.empty_table()
        texts = dict.fromkeys(self.schema.names, pa.string())
        try:
            table = pcsv.read_csv(
                pa.BufferReader(whole),
                read_options=pcsv.ReadOptions(
                    use_threads=False, block_size=len(whole) + 1, column_names=self.schema.names
                ),
                parse_options=pcsv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char=self.quote,
                    double_quote=self.escape == self.quote,
                ),
                convert_options=pcsv.ConvertOptions(
                    check_utf8=False,
                    column_types=texts,
                    null_values=["", self.null_value],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            raise UndecidedError(str(error)) from error
        if table.num_rows != rows:
            raise UndecidedError("a line that is several rows, or none")
        columns = [
            of_text(column.combine_chunks(), field.type)
            for column, field in zip(table.columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _rows_in(self, whole: bytes) -> int:
        """The number of lines that are not empty.

        Raises:
            UndecidedError: the two parsers may cut one of them differently.
        """
        import numpy as np

        check_bytes(whole)
        if b"\r" in whole:
            raise UndecidedError("a line that may end in the middle")
        letters = np.frombuffer(whole, np.uint8)
        ends = np.append(np.flatnonzero(letters == ord("\n")), len(letters))
        if self.escape != self.quote and self.escape.encode() in whole:
            raise UndecidedError("an escaped letter")
        if self.quote.encode() in whole:
            self._check_quotes(letters, ends)
        return int(np.count_nonzero(np.diff(ends, prepend=-1) > 1))

    def _check_quotes(self, letters: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> None:
        """Raises UndecidedError unless quotes are around whole fields, of one line each.

        Those of odd numbers open, and the others close; one within a field, which is there twice,
        closes it and opens it again.
        """
        import numpy as np

        quote = ord(self.quote)
        places = np.flatnonzero(letters == quote)
        if len(places) % 2:
            raise UndecidedError("a quote that is open")
        if (np.searchsorted(places, ends) % 2).any():
            raise UndecidedError("a quote that is open at the end of a line")
        opening, closing = places[::2], places[1::2]
        # What is outside of the text is as good as a line's end.
        around = np.concatenate(([ord("\n")], letters, [ord("\n")]))
        before, behind = around[opening], around[closing + 2]
        is_edge = np.zeros(256, bool)
        is_edge[[ord("\n"), ord(self.delimiter), quote]] = True
        if not (is_edge[before].all() and is_edge[behind].all()):
            raise UndecidedError("a quote within a field")
        is_empty = (closing == opening + 1) & (before != quote) & (behind != quote)
        if self.null_value and is_empty.any():
            raise UndecidedError("a text that is empty, and no null")
        if self.escape != self.quote and (behind == quote).any():
            raise UndecidedError("two quotes, of which none is escaped")


def plain_csv(how: TextDecoding) -> PlainCsv | None:
    """The decoder of lines of CSV; None if only Spark can decode them."""
    import pyarrow as pa

    if set(how.options) != _OPTIONS:
        return None
    letters = [how.options[name] for name in ("sep", "quote", "escape")]
    delimiter, quote, escape = letters
    if any(len(one) != 1 or not one.isascii() or one.isalnum() for one in letters):
        return None
    if delimiter in (quote, escape) or any(one in _NO_DELIMITERS for one in letters):
        return None
    columns = row_schema("the source", how.schema)
    types = {name: plain_type(column) for name, column in columns.items()}
    if None in types.values() or len(types) == 1:  # A blank line would be a field.
        return None
    return PlainCsv(
        schema=pa.schema(list(types.items())),
        delimiter=delimiter,
        quote=quote,
        escape=escape,
        null_value=how.options["nullValue"],
    )


def plain_type(column: ColumnType) -> pa.DataType | None:
    """The type as Spark hands it to Python; None where its text may be read differently.

    That is so for floats of 32 bits, which Spark's JSON rounds twice, and for decimals: a process
    that had Arrow read hostile ones ended with a segmentation fault.
    """
    return arrow_type(column) if column.name in _PLAIN else None


def check_bytes(whole: bytes) -> None:
    """Raises UndecidedError for bytes that Spark reads otherwise, wherever they are."""
    if END.encode() in whole or b"\0" in whole:
        raise UndecidedError("reserved characters")
    if not whole.isascii():
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            raise UndecidedError("not UTF-8") from error


def of_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The strings *texts* as *kind*, of ``plain_type``.

    Raises:
        UndecidedError: Spark might read one of them otherwise.
    """
    from pyarrow import types

    if types.is_string(kind):
        return texts
    if types.is_boolean(kind):
        return _booleans(texts)
    if types.is_date32(kind):
        _, starts, ends = _bounds(texts)
        if (ends - starts != _DATE_LETTERS).any():
            raise UndecidedError("an unusual date")
    elif types.is_timestamp(kind):
        return _moments(texts, kind)
    else:
        _check_letters(texts, _WHOLE if types.is_integer(kind) else _REAL)
    values = _cast(texts, kind)
    check_numbers(values)
    _check_years(values)
    return values


def check_numbers(column: pa.Array) -> None:
    """Raises UndecidedError for a zero with a sign, or a number that no value of its type is."""
    import numpy as np
    from pyarrow import types

    if types.is_struct(column.type):
        for field in column.flatten():
            check_numbers(field)
    elif types.is_list(column.type):
        check_numbers(column.flatten())
    elif types.is_floating(column.type):
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if not np.isfinite(values).all() or (np.signbit(values) & (values == 0)).any():
            raise UndecidedError("a number that is not finite, or a negative zero")


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise UndecidedError(str(error)) from error


def _booleans(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    small = pc.ascii_lower(texts)
    is_true = pc.equal(small, "true")
    if pc.all(pc.or_(is_true, pc.equal(small, "false"))).as_py() is False:
        raise UndecidedError("no boolean")
    return is_true


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    letters, starts, ends = _bounds(texts)
    if (ends - starts < _TIME_LETTERS).any():
        raise UndecidedError("an unusual timestamp")
    if (letters[starts + 13] != ord(":")).any() or (letters[starts + 16] != ord(":")).any():
        raise UndecidedError("an unusual timestamp")
    sign = letters[ends - 6]
    has_offset = ((sign == ord("+")) | (sign == ord("-"))) & (letters[ends - 3] == ord(":"))
    is_zoned = has_offset | (letters[ends - 1] == ord("Z"))
    hours = 10 * letters[ends - 5][has_offset].astype(np.int16) + letters[ends - 4][has_offset]
    if (hours > 11 * ord("0") + _LAST_OFFSET_HOUR).any():
        raise UndecidedError("an unusual time zone")
    local = pa.timestamp("us")
    if kind == local and is_zoned.any():
        raise UndecidedError("a time zone, which the column has not")
    # A cast to a type with a zone asks for one in each text, one to a type without for none.
    if is_zoned.all():
        values = _cast(texts, kind)
    elif not is_zoned.any():
        values = _cast(texts, local).view(kind)
    else:
        with_zone = np.zeros(len(texts), bool)
        with_zone[texts.is_valid().to_numpy(zero_copy_only=False)] = is_zoned
        mask, none = pa.array(with_zone), pa.scalar(None, texts.type)
        without = _cast(pc.if_else(mask, none, texts), local).view(kind)
        values = pc.coalesce(_cast(pc.if_else(mask, texts, none), kind), without)
    _check_years(values)
    return values


def _check_years(values: pa.Array) -> None:
    """Raises UndecidedError for a date or a timestamp before the year 1."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if not types.is_date32(values.type) and not types.is_timestamp(values.type):
        return
    is_date = types.is_date32(values.type)
    least = pc.min(values.view(pa.int32() if is_date else pa.int64())).as_py()
    if least is not None and least < FIRST_DAY * (1 if is_date else DAY["us"]):
        raise UndecidedError("a time before the year 1")


def _check_letters(texts: pa.Array, known: bytes) -> None:
    """Raises UndecidedError for another letter in *texts* than the *known* ones."""
    import numpy as np

    letters, starts, ends = _bounds(texts)
    if not len(starts):
        return
    is_known = np.zeros(256, bool)
    is_known[np.frombuffer(known, np.uint8)] = True
    if not is_known[letters[starts[0] : ends[-1]]].all():
        raise UndecidedError("an unusual number")


def _bounds(
    texts: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The bytes of *texts*, and where in them each begins and ends that is not null."""
    import numpy as np

    _, offsets, data = texts.buffers()
    letters = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if offsets is None or not len(texts):
        return letters, np.zeros(0, np.intp), np.zeros(0, np.intp)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = bounds[:-1].astype(np.intp), bounds[1:].astype(np.intp)
    if texts.null_count:
        is_there = texts.is_valid().to_numpy(zero_copy_only=False)
        starts, ends = starts[is_there], ends[is_there]
    return letters, starts, ends
