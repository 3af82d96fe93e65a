"""Builds the operator that computes a declared stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.windows import Session
from sluice.subtask.operators.aggregate import KeyedAggregate
from sluice.subtask.operators.changelog_join import ChangelogJoin
from sluice.subtask.operators.deduplicate import Deduplicate
from sluice.subtask.operators.interval_join import IntervalJoin
from sluice.subtask.operators.keyed_lookup import KeyedLookup
from sluice.subtask.operators.latest import Latest
from sluice.subtask.operators.operator import WEIGHT, Operator
from sluice.subtask.operators.process import Process
from sluice.subtask.operators.process_keyed import ProcessKeyed
from sluice.subtask.operators.regular_join import RegularJoin
from sluice.subtask.operators.sessions import SessionWindow
from sluice.subtask.operators.top_n import TopN
from sluice.subtask.operators.window_join import WindowJoin
from sluice.subtask.operators.window_top_n import WindowTopN
from sluice.subtask.operators.windows import AlignedWindow


def build_operator(stage: StageNode, schemas: Sequence[pl.Schema]) -> Operator:
    """The stateful operator of *stage* over inputs of *schemas*.

    Raises:
        ConfigurationError: a column does not exist, or its type is wrong for its purpose.
    """
    operation = stage.operation
    if isinstance(operation, ops.RegularJoin):
        return regular_join(stage, *schemas)
    if isinstance(operation, ops.WindowAggregate) and isinstance(operation.window, Session):
        return SessionWindow(stage, *schemas)
    return _OPERATORS[type(operation)](stage, *schemas)


def hashes_groups(operator: Operator) -> bool:
    """Whether it folds rows into groups of their keys, so that no row's hash is needed before.

    ``key_hash`` has to take its keys.
    """
    return isinstance(operator, KeyedAggregate | AlignedWindow | SessionWindow)


def regular_join(stage: StageNode, left: pl.Schema, right: pl.Schema) -> Operator:
    """The operator of a regular join: the simpler one where no row can ever be taken back."""
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
