"""Columns by their exact names: Spark takes a bare name for SQL, where a dot selects a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def quoted(name: str) -> str:
    """*name*, quoted for SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def columns_named(names: Iterable[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return [F.col(quoted(name)) for name in names]


Batches = Iterable["pa.RecordBatch"]


def map_batches(
    rows: DataFrame,
    function: Callable[[Batches], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """``rows.mapInArrow`` for columns of any name: it looks each one up by its bare name."""
    from pyspark.sql.pandas.types import from_arrow_schema

    names, yielded = rows.columns, from_arrow_schema(schema)  # DDL would be parsed in the JVM.
    if all(map(str.isidentifier, names)):
        return rows.mapInArrow(function, yielded)

    def by_name(batches: Batches) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(by_name, yielded)
