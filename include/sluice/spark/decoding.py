"""Decoding of a column of JSON or CSV text to columns, in Spark.

A text is one record, or it is malformed: no part of it is silently dropped or misread.
``from_json`` stops behind the first value, whatever follows, and ``from_csv`` closes a quote that
is open at the end.  So an extra field is appended to each text, and a record is good if that field
was decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW, TextDecoding
from sluice.connectors.files.csv_header import delimiter_of
from sluice.connectors.files.plain_json import END
from sluice.spark.names import columns_named
from sluice.subtask.side_rows import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD = "_record"
CORRUPT = "_corrupt"
MODE: Mapping[str, str] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

BLANKS = " \t"


def decoded(rows: DataFrame, how: TextDecoding) -> DataFrame:
    """The decoded columns of a column of text; blank texts are no rows."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    text = F.col(how.column)
    rows = rows.where(f"trim(BOTH '{_blanks(how)}' FROM {how.column}) != ''")
    if how.has_header:
        rows = rows.where(f"{SOURCE}.record > 0")
    if how.format == "json":
        what, read, held = "a JSON object", _from_json(text, how), f"{RECORD}.record.*"
        is_there = f"{RECORD}.record IS NOT NULL"
    else:
        what, read, held = "a CSV row", _from_csv(text, how), f"{RECORD}.*"
        is_there = "true"
    is_good = F.expr(
        f"coalesce({RECORD}.{CORRUPT} IS NULL AND {RECORD}.{END} = '{END}' AND {is_there}"
        f" AND NOT contains({how.column}, '{END}'), false)"
    )
    return (
        rows.withColumn(RECORD, read)
        .withColumn(MALFORMED_COLUMN, F.when(~is_good, f"not {what} of the source's schema"))
        .withColumn(RAW, F.when(~is_good, text))
        .select(held, *columns_named(how.keeps), SOURCE, MALFORMED_COLUMN, RAW)
        .drop(END, CORRUPT)
    )


def _from_json(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"record struct<{how.schema}>, {END} string, {CORRUPT} string"
    # A line break ends a comment, if the declaration allows comments.
    within = F.concat(F.lit('{"record":'), text, F.lit(f'\n,"{END}":"{END}"}}'))
    return F.from_json(within, schema, {**MODE, **how.options})


def _from_csv(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"{how.schema}, {END} string, {CORRUPT} string"
    with_end = F.concat(text, F.lit(delimiter_of(how) + END))
    return F.from_csv(with_end, schema, {**MODE, **how.options})


def _blanks(how: TextDecoding) -> str:
    """The characters of a blank text; a delimiter is none, as it makes a row of empty fields."""
    delimiter = delimiter_of(how) if how.format == "csv" else ""
    return "".join(blank for blank in BLANKS if blank not in delimiter)
