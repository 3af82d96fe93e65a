"""Lines of CSV decoded by Arrow, where it can be shown that Spark's ``from_csv`` gives the same.

A block is decoded as a whole, or it is undecided: see ``json_lines``.  Fields are cut at the
delimiters; a quote is known only as the first and the last letter of a field, or twice within.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.plain_types import check_bytes, of_text, plain_type
from sluice.declaration.column_types import row_schema
from sluice.declaration.places import TextDecoding, UndecidedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_OPTIONS = {"sep", "quote", "escape", "nullValue"}  # Those that every declaration has.
_NO_DELIMITERS = " \n\r\0-+."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCsv:
    """Lines of the columns of ``schema``; the others are those of ``Files``."""

    schema: pa.Schema
    delimiter: str
    quote: str
    escape: str
    null_value: str

    def decoded(self, whole: bytes) -> pa.Table:
        """The rows of *whole* lines, of which the last has lost its newline; empty ones are none.

        Raises:
            UndecidedError: Spark might read one of the lines otherwise.
        """
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
