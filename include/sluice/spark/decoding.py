"""Text that Spark decodes: a column of JSON or CSV as the columns that it holds.

A text is one record or malformed: nothing of it is lost, or taken for something else, without a
word.  ``from_json`` stops behind the first value, whatever follows, and ``from_csv`` closes a quote
that is open at the end.  So either gets a text with one more field of ours behind it, and a record
is good if that field was reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.connectors.csv_header import delimiter_of
from sluice.connectors.source import MALFORMED_COLUMN, RAW, TextDecoding
from sluice.runtime.output import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD = "_record"
CORRUPT = "_corrupt"
MODE: Mapping[str, str] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

# The field behind the text, and its value.  A text with this in it could feign it: malformed.
END = "sluice_end_9b1fd3c5a7"

BLANKS = " \t"


def decoded(rows: DataFrame, how: TextDecoding) -> DataFrame:
    """The columns that a column of text holds; blank texts are no rows."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    text = F.col(how.column)
    rows = rows.where(f"trim(BOTH '{_blanks(how)}' FROM {how.column}) != ''")
    if how.has_header:
        rows = rows.where(f"{SOURCE}.record > 0")
    if how.format == "json":
        what, read, columns = "a JSON object", _from_json(text, how), f"{RECORD}.record.*"
        is_there = f"{RECORD}.record IS NOT NULL"
    else:
        what, read, columns = "a CSV row", _from_csv(text, how), f"{RECORD}.*"
        is_there = "true"
    is_good = F.expr(
        f"coalesce({RECORD}.{CORRUPT} IS NULL AND {RECORD}.{END} = '{END}' AND {is_there}"
        f" AND NOT contains({how.column}, '{END}'), false)"
    )
    return (
        rows.withColumn(RECORD, read)
        .withColumn(MALFORMED_COLUMN, F.when(~is_good, f"not {what} of the source's schema"))
        .withColumn(RAW, F.when(~is_good, text))
        .select(columns, *how.keeps, SOURCE, MALFORMED_COLUMN, RAW)
        .drop(END, CORRUPT)
    )


def _from_json(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"record struct<{how.schema}>, {END} string, {CORRUPT} string"
    # A line break ends a comment, where the declaration allows comments.
    within = F.concat(F.lit('{"record":'), text, F.lit(f'\n,"{END}":"{END}"}}'))
    return F.from_json(within, schema, {**MODE, **how.options})


def _from_csv(text: Column, how: TextDecoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    schema = f"{how.schema}, {END} string, {CORRUPT} string"
    with_end = F.concat(text, F.lit(delimiter_of(how) + END))
    return F.from_csv(with_end, schema, {**MODE, **how.options})


def _blanks(how: TextDecoding) -> str:
    """What a text without a record is made of; delimiters make a row of empty fields."""
    delimiter = delimiter_of(how) if how.format == "csv" else ""
    return "".join(blank for blank in BLANKS if blank not in delimiter)
