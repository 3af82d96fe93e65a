"""From a declared stage to the operator that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from sluice import operations as ops
from sluice.nodes import StageNode
from sluice.runtime.operators.aggregate import KeyedAggregate
from sluice.runtime.operators.changelog_join import ChangelogJoin
from sluice.runtime.operators.deduplicate import Deduplicate
from sluice.runtime.operators.interval_join import IntervalJoin
from sluice.runtime.operators.keyed_lookup import KeyedLookup
from sluice.runtime.operators.latest import Latest
from sluice.runtime.operators.operator import WEIGHT, Operator
from sluice.runtime.operators.process import Process
from sluice.runtime.operators.process_keyed import ProcessKeyed
from sluice.runtime.operators.regular_join import RegularJoin
from sluice.runtime.operators.sessions import SessionWindow
from sluice.runtime.operators.top_n import TopN
from sluice.runtime.operators.window_join import WindowJoin
from sluice.runtime.operators.window_top_n import WindowTopN
from sluice.runtime.operators.windows import AlignedWindow
from sluice.windows import Session


def build_operator(stage: StageNode, schemas: Sequence[pl.Schema]) -> Operator:
    """The stateful operator of *stage* over inputs of *schemas*.

    Raises:
        ConfigurationError: a column does not exist, or has a type that cannot serve its purpose.
    """
    operation = stage.operation
    if isinstance(operation, ops.RegularJoin):
        return regular_join(stage, *schemas)
    if isinstance(operation, ops.WindowAggregate) and isinstance(operation.window, Session):
        return SessionWindow(stage, *schemas)
    return _OPERATORS[type(operation)](stage, *schemas)


def regular_join(stage: StageNode, left: pl.Schema, right: pl.Schema) -> Operator:
    """Of rows that are only appended, an inner or semi join never takes one back."""
    assert isinstance(stage.operation, ops.RegularJoin)
    is_append_only = WEIGHT not in left and WEIGHT not in right
    if is_append_only and stage.operation.how in ("inner", "semi"):
        return RegularJoin(stage, left, right)
    return ChangelogJoin(stage, left, right)


_OPERATORS: dict[type[ops.Operation], Callable[..., Operator]] = {
    ops.KeyedAggregate: KeyedAggregate,
    ops.KeyedLookup: KeyedLookup,
    ops.WindowAggregate: AlignedWindow,
    ops.WindowTopN: WindowTopN,
    ops.TopN: TopN,
    ops.Latest: Latest,
    ops.Deduplicate: Deduplicate,
    ops.IntervalJoin: IntervalJoin,
    ops.WindowJoin: WindowJoin,
    ops.Process: Process,
    ops.ProcessKeyed: ProcessKeyed,
}
