"""The effect of a Spark code stage's answer on its result: ``pipeline.spark(..., result=)``.

    Append()             its rows are added, and kept nowhere: there is no previous result
    Upsert("customer")   each of its rows replaces the one of its key; one whose column _deleted is
                         true takes the row of its key away
    Replace("customer")  its rows are the whole result; those that are not in it are taken away
    ReplacePartitions("day", key="customer")
                         the same of each day that it has a row of; other days stay as they are.
                         With where="day >= '2026-03-01'" an answer for another day is an error

Without a key, Replace() and ReplacePartitions("day"), a result is a bag: equal rows may be in it
several times, and no columns tell two of its rows apart.

A result that is kept is the keyed state of its stage.  What is sent is how it differs from the
previous one: so what reads it sees the rows that changed, and none twice.

Several results are one answer of the function, and each is kept by a stage of its own.  A row of
the answer is of one result: ``result`` says of which, and a struct has the row's columns,
``of_good``.  So the function is called once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sluice.declaration.arguments import checked_initializer
from sluice.declaration.column_types import row_schema
from sluice.declaration.columns import check_columns
from sluice.declaration.sql_tree import tokens
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Append:
    """The rows of the answer are added."""

    def __str__(self) -> str:
        return "append"


@checked_initializer
@dataclass(frozen=True, slots=True)
class Upsert:
    """An answer whose rows replace those that have their ``key``, one column or several.

    The answer may have a column ``_deleted``, a boolean, beside those of the schema: where it is
    true the row of that key is taken away, and the other columns do not matter.
    """

    key: str | tuple[str, ...]

    def __post_init__(self) -> None:
        _check_key(self)

    @property
    def columns(self) -> tuple[str, ...]:
        return _columns(self.key)

    def __str__(self) -> str:
        return "upsert"


@checked_initializer
@dataclass(frozen=True, slots=True)
class Replace:
    """The answer is the whole result, of which no two rows have the same ``key``, if it has one."""

    key: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            _check_key(self)

    @property
    def columns(self) -> tuple[str, ...]:
        return _columns(self.key)

    def __str__(self) -> str:
        return "replace"


@checked_initializer
@dataclass(frozen=True, slots=True)
class ReplacePartitions:
    """The answer replaces all rows that have its values in ``partition_by``, one column or several.

    No two rows of such a partition have the same ``key``, if it has one.  A partition is kept by
    one subtask, and compared in its memory.  A row of the answer for which ``where``, Spark's SQL,
    is not true fails the stage: the function replaces a partition that it was not to.
    """

    partition_by: str | tuple[str, ...]
    key: str | tuple[str, ...] | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        if not _are_distinct(self.partitions):
            raise ConfigurationError(
                f"ReplacePartitions({self.partition_by!r}) names no column, or one twice; name the "
                "columns whose values say which rows are replaced together"
            )
        if self.where is not None and not any(tokens(self.where)):
            raise ConfigurationError(
                f"ReplacePartitions() has where={self.where!r}, which computes nothing; write a "
                "condition on the partitions, or leave where out"
            )
        if self.key is not None:
            _check_key(self)

    @property
    def partitions(self) -> tuple[str, ...]:
        return _columns(self.partition_by)

    @property
    def columns(self) -> tuple[str, ...]:
        return (
            ()
            if self.key is None
            else tuple(dict.fromkeys((*self.partitions, *_columns(self.key))))
        )

    def __str__(self) -> str:
        return f"replace by {', '.join(self.partitions)}"


Kept: TypeAlias = Upsert | Replace | ReplacePartitions
Result: TypeAlias = Append | Kept


def _check_key(result: Kept) -> None:
    columns = _columns(result.key)
    if not _are_distinct(columns):
        raise ConfigurationError(
            f"{type(result).__name__}(key={result.key!r}) names no column, or one twice; name the "
            "columns in which no two rows of the result are equal"
        )


def _are_distinct(columns: tuple[str, ...]) -> bool:
    return bool(columns) and all(columns) and len({*columns}) == len(columns)


def _columns(key: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key or ()


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
