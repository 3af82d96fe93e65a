"""``build_operator``: the operator that computes a declared stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.columns import check_columns
from sluice.declaration.nodes import StageNode
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.changes import OURS, changelog_normalize
from sluice.operators.joins import (
    ChangelogJoin,
    IntervalJoinOperator,
    KeyedLookupOperator,
    RegularJoinOperator,
    WindowJoinOperator,
)
from sluice.operators.keyed_function import ProcessKeyedOperator, ProcessOperator
from sluice.operators.operator import WEIGHT, Operator, input_schema
from sluice.operators.ranking import (
    DeduplicateOperator,
    LatestOperator,
    TopNOperator,
    WindowTopNOperator,
)
from sluice.operators.spark_result import SparkBagOperator, SparkResultOperator
from sluice.operators.windows import AlignedWindow, SessionWindow


def build_operator(stage: StageNode, schemas: Sequence[pl.Schema]) -> Operator:
    """The stateful operator of *stage* over inputs of *schemas*.

    Raises:
        ConfigurationError: a column does not exist, or its type is wrong for its purpose.
    """
    if isinstance(stage.operation, ops.SparkCode):
        (answer,) = schemas  # Whatever the function reads.
        is_bag = not stage.operation.identity
        return SparkBagOperator(stage, answer) if is_bag else SparkResultOperator(stage, answer)
    for schema, given in zip(schemas, stage.shuffled, strict=True):
        check_columns(
            input_schema(schema), f"stage {stage.uid!r}, in what it reads of {given.producer!r},"
        )
    operator = _operator(stage, schemas)
    check_columns(operator.output_schema, f"the result of stage {stage.uid!r}", may_have=OURS)
    return operator


def _operator(stage: StageNode, schemas: Sequence[pl.Schema]) -> Operator:
    operation = stage.operation
    if isinstance(operation, ops.RegularJoin):
        return regular_join(stage, *schemas)
    if isinstance(operation, ops.WindowAggregate) and isinstance(operation.window, ops.Session):
        return SessionWindow(stage, *schemas)
    return _OPERATORS[type(operation)](stage, *schemas)


def regular_join(stage: StageNode, left: pl.Schema, right: pl.Schema) -> Operator:
    """The operator of a regular join: the simpler one where no row can ever be taken back."""
    assert isinstance(stage.operation, ops.RegularJoin)
    is_append_only = WEIGHT not in left and WEIGHT not in right
    if is_append_only and stage.operation.how in ("inner", "semi"):
        return RegularJoinOperator(stage, left, right)
    return ChangelogJoin(stage, left, right)


def hashes_groups(operator: Operator) -> bool:
    """Whether *operator* folds rows by their keys, so that only its groups need a hash.

    Their keys must be of types that ``can_hash`` of ``sluice.state.key_hash`` takes.
    """
    return isinstance(operator, KeyedAggregateOperator | AlignedWindow | SessionWindow)


_OPERATORS: dict[type[ops.Operation], Callable[..., Operator]] = {
    ops.KeyedAggregate: KeyedAggregateOperator,
    ops.KeyedLookup: KeyedLookupOperator,
    ops.WindowAggregate: AlignedWindow,
    ops.WindowTopN: WindowTopNOperator,
    ops.TopN: TopNOperator,
    ops.Latest: LatestOperator,
    ops.ChangelogNormalize: changelog_normalize,
    ops.Deduplicate: DeduplicateOperator,
    ops.IntervalJoin: IntervalJoinOperator,
    ops.WindowJoin: WindowJoinOperator,
    ops.Process: ProcessOperator,
    ops.ProcessKeyed: ProcessKeyedOperator,
}
