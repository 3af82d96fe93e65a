"""Lines of JSON or CSV that Python decodes where it is certain what Spark makes of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from sluice.connectors.csv_lines import plain_csv
from sluice.connectors.json_lines import plain_json
from sluice.declaration.places import TextDecoding, UndecidedError

if TYPE_CHECKING:
    import pyarrow as pa

# Words beside a column's type that may change what its values are.
_REMARK = re.compile(r"\b(?:collate|default|not|generated)\b", re.IGNORECASE)


class PlainLines(Protocol):
    """A decoder of lines to the columns of ``schema``, pickled for Spark's workers."""

    @property
    def schema(self) -> pa.Schema: ...

    def decoded(self, whole: bytes) -> pa.Table:
        """The rows of *whole* lines, of which the last has lost its newline; blank ones are none.

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
