"""What a metric is: a name, a unit, and what it is a figure of."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Scope(StrEnum):
    """What a metric is a figure of; its labels beside ``pipeline`` are in ``labels``."""

    JOB = "job"
    SOURCE = "source"
    STAGE = "stage"


class Unit(StrEnum):
    NUMBER = "number"
    BYTES = "bytes"
    MILLISECONDS = "ms"
    MOMENT = "ms since 1970"
    PER_SECOND = "number/s"
    BYTES_PER_SECOND = "bytes/s"
    FLAG = "0 or 1"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """``help`` is one clause, for people."""

    name: str
    unit: Unit
    help: str
    scope: Scope = Scope.JOB
    label: str | None = None
    is_flinks: bool = True

    @property
    def labels(self) -> tuple[str, ...]:
        of_node = () if self.scope is Scope.JOB else (self.scope.value,)
        own = (self.label,) if self.label is not None else ()
        return ("pipeline", *of_node, *own)

    @property
    def key(self) -> str:
        """Sources and stages have metrics of one name."""
        return f"{self.scope}.{self.name}" if self.scope is Scope.SOURCE else self.name

    @property
    def documentation(self) -> str:
        return f"{self.help} ({self.unit})"
