"""What the answer of a stage of Spark code does to its result: ``pipeline.spark(..., result=)``.

    Append()             its rows are added, and kept nowhere: there is no previous result
    Upsert("customer")   each of its rows replaces the one of its key; one whose column _deleted is
                         true takes the row of its key away
    Replace("customer")  its rows are the whole result; those that are not in it are taken away

A result with a key is the keyed state of its stage.  What is sent is how it differs from the
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
    """Each row of the answer replaces the one that has its ``key``, one column or several.

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
    """The answer is the whole result, of which no two rows have the same ``key``."""

    key: str | tuple[str, ...]

    def __post_init__(self) -> None:
        _check_key(self)

    @property
    def columns(self) -> tuple[str, ...]:
        return _columns(self.key)

    def __str__(self) -> str:
        return "replace"


Keyed: TypeAlias = Upsert | Replace
Result: TypeAlias = Append | Keyed


def _check_key(result: Keyed) -> None:
    columns = result.columns
    if not columns or len({*columns}) < len(columns):
        raise ConfigurationError(
            f"{type(result).__name__}(key={result.key!r}) names no column, or one twice; name the "
            "columns in which no two rows of the result are equal"
        )


def _columns(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key
