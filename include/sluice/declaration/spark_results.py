"""Several results of one function of Spark code: its answers are one stream, and each is kept by a
stage of its own.

A row of the stream is of one answer: ``result`` says of which, and a struct has the row's columns,
``of_good``.  So the function is called once for all of them, and what the stages keep is one
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.declaration.column_types import row_schema
from sluice.declaration.columns import check_columns
from sluice.declaration.results import Append, Result, Upsert
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT = "result"  # Of which answer a row is.


def packed_schema(uid: str, declared: Mapping[str, tuple[str, Result]]) -> str:
    """The schema of the answers of the stage *uid*, in Spark's DDL; *declared* are the schema and
    the result of each.

    Raises:
        ConfigurationError: there is none, one has no schema, or two names differ in case alone.
    """
    if not declared:
        raise ConfigurationError(
            f"stage {uid!r} has no result; name those of its function: "
            "results={'good': ('id bigint', Upsert('id'))}"
        )
    check_columns(declared, f"what stage {uid!r} answers")
    packed = [f"{RESULT} string"]
    for name, (schema, result) in sorted(declared.items()):
        columns = row_schema(f"result {name!r} of stage {uid!r}", schema)
        fields = [f"`{column}`: {of}" for column, of in columns.items()]
        marks = ["_deleted: boolean"] if isinstance(result, Upsert) else []
        packed.append(f"`{column_of(name)}` struct<{', '.join([*fields, *marks])}>")
    return ", ".join(packed)


def column_of(name: str) -> str:
    """The column that has the rows of the answer *name*."""
    return f"of_{name}"


def keeps_any(declared: Mapping[str, tuple[str, Result]]) -> bool:
    return any(not isinstance(result, Append) for _, result in declared.values())


def result_named(name: str, /, answers: DataFrame) -> DataFrame:
    """The rows of the answer *name*."""
    rows = answers.where(f"{RESULT} = '{name}'")
    return rows.select(f"`{column_of(name)}`.*")
