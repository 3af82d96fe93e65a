"""What a declaration is made of: operators, and the sources, stages and sinks that hold them.

Plain frozen data without behaviour; ``sluice.pipeline`` builds it, Spark's workers receive it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.aggregates import Aggregate
from sluice.params import Param
from sluice.sinks import SinkSpec
from sluice.sources import SourceSpec
from sluice.windows import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Keep = Literal["matched", "unmatched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Any DataFrame -> DataFrame that needs no other row: it runs in Spark's JVM.

    The rows carry ``_source`` (partition, record); keep it, and sluice can say where a row came
    from.  A row whose ``_malformed`` column is not null goes to the side output ``malformed``.
    """

    function: Callable[..., DataFrame]
    arguments: Mapping[str, str | int | Param]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Rows against a small table as of the same barrier, by a broadcast join."""

    table: str
    on: Mapping[str, str]  # Column of the stream -> SQL expression over the table.
    keep: Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedAggregate:
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate:
    keys: tuple[str, ...]
    window: Tumbling
    aggregates: Mapping[str, Aggregate]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """Per key the *n* rows with the largest ``by``; ``unique`` identifies a row that is updated.

    ``by`` must never decrease for a row (Flink's UpdatableTopNFunction): counts and maxima do not.
    """

    keys: tuple[str, ...]
    n: int
    by: str
    unique: tuple[str, ...]


Operator: TypeAlias = Transform | Lookup | KeyedAggregate | WindowAggregate | TopN


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """``is_table``: the whole of it is read at every barrier, and looked up, not streamed.
    ``is_induced``: its barriers come from outside; a checkpoint without one reads nothing of it.
    """

    uid: str
    spec: SourceSpec
    event_time: str | None
    out_of_orderness_ms: int
    is_table: bool
    is_induced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """Flink's operator chain of one operator with its filter, projection and sinks."""

    uid: str
    operator: Operator
    input: str
    event_time: str | None  # The input's.
    parallelism: int | None = None
    key_expressions: Mapping[str, str] = field(default_factory=dict[str, str])
    where: tuple[str, ...] = ()  # SQL over the operator's result.
    select: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        match self.operator:
            case KeyedAggregate() | WindowAggregate() | TopN():
                return self.operator.keys
            case _:
                return ()

    @property
    def needed_columns(self) -> tuple[str, ...] | None:
        """What a keyed stage shuffles beside its keys; None is everything."""
        match self.operator:
            case KeyedAggregate(aggregates=aggregates):
                wanted = [a.column for a in aggregates.values()]
            case WindowAggregate(aggregates=aggregates):
                wanted = [self.event_time, *(a.column for a in aggregates.values())]
            case _:
                return None
        return tuple(dict.fromkeys(name for name in wanted if name is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNode:
    uid: str
    spec: SinkSpec
    input: str
