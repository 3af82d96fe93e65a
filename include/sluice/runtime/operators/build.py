"""From a declared stage to the operator that computes it."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from sluice.nodes import KeyedAggregate as DeclaredAggregate
from sluice.nodes import Lookup, StageNode, Transform, WindowAggregate
from sluice.nodes import TopN as DeclaredTopN
from sluice.runtime.operators.aggregate import KeyedAggregate
from sluice.runtime.operators.operator import Operator
from sluice.runtime.operators.top_n import TopN
from sluice.runtime.operators.windows import TumblingWindow


def build_operator(stage: StageNode, schema: pl.Schema) -> Operator:
    """The stateful operator of a keyed *stage* over rows of *schema*.

    Raises:
        ConfigurationError: a column does not exist, or has a type that cannot be aggregated.
    """
    match stage.operator:
        case DeclaredAggregate(keys=keys, aggregates=aggregates):
            return KeyedAggregate(stage.uid, keys, aggregates, schema)
        case WindowAggregate(keys=keys, window=window, aggregates=aggregates):
            assert stage.event_time is not None, "checked when it was declared"
            size_ms = window.size // timedelta(milliseconds=1)
            return TumblingWindow(stage.uid, keys, size_ms, stage.event_time, aggregates, schema)
        case DeclaredTopN(keys=keys, n=n, by=by, unique=unique):
            return TopN(stage.uid, keys, n, by, unique, schema)
        case Transform() | Lookup():
            raise AssertionError(f"stage {stage.uid!r} keeps no state")
