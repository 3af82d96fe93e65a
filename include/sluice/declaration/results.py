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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sluice.declaration.arguments import checked_initializer
from sluice.errors import ConfigurationError


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
        if not self.partitions or len({*self.partitions}) < len(self.partitions):
            raise ConfigurationError(
                f"ReplacePartitions({self.partition_by!r}) names no column, or one twice; name the "
                "columns whose values say which rows are replaced together"
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
    if not columns or len({*columns}) < len(columns):
        raise ConfigurationError(
            f"{type(result).__name__}(key={result.key!r}) names no column, or one twice; name the "
            "columns in which no two rows of the result are equal"
        )


def _columns(key: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key or ()
