"""The result of Spark code: its answer is merged with the rows that are kept, and what differs is
sent.

Rows of the state are those of the result, by its key; of a result without one each row has the
number of its copies.  ``previous`` is read of them.  An answer with two rows of a key, or with a
null in one, is refused before anything of it is kept, and so is a partition that is not declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from sluice.declaration import results
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode
from sluice.errors import ConfigurationError
from sluice.operators.changes import COPIES, Bag, repeated
from sluice.operators.kernels import grouped
from sluice.operators.operator import (
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    differs,
    input_schema,
    key_types,
    require_distinct,
)
from sluice.operators.ranking import ROWS
from sluice.operators.sql import Compiled, NotCompiledError, condition, filtered
from sluice.state.at_once import chosen, passing
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import aligned, newest_per_identity
from sluice.state.segments import DELETED, HASH, StateSchema

_MORE = "_more"  # By how many copies there are more of a row than before.


class SparkResultOperator(RawRows):
    """Rows of an answer replace those of their keys; by ``Replace`` the others are taken away, by
    ``ReplacePartitions`` those of its partitions.

    Output is an upsert stream on the key: the rows that are new or differ, with those that they
    replace, and those that are gone, as retractions.  State is a row per key, and an unchanged row
    is not written again.
    """

    def __init__(self, stage: StageNode, answer: pl.Schema) -> None:
        """*answer* are the columns of the function's answer.

        Raises:
            ConfigurationError: it has no column of the key.
        """
        code = stage.operation
        assert isinstance(code, SparkCode)
        columns = {name: of for name, of in input_schema(answer).items() if name != DELETED}
        key_types(stage.uid, pl.Schema(columns), code.identity)
        require_distinct(stage.uid, columns)
        self._uid, self._result = stage.uid, code.result
        self._outside = _outside(stage.uid, code.result, columns)
        self._key = code.identity
        self._is_deleting = DELETED in answer
        self.output_schema = pl.Schema(columns)
        self._schema = StateSchema(
            columns=self.output_schema,
            key_columns=stage.keys,
            sub_key_columns=tuple(name for name in code.identity if name not in stage.keys),
        )
        self.tables = {ROWS: self._schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - neither plays a part here
        """Raises ConfigurationError for a row without a key, or of another partition."""
        _refuse_nulls(self._uid, rows, self._key, self.output_schema)
        _refuse_outside(self._uid, rows, self._result, self._outside)
        deleted = [DELETED] if self._is_deleting else []
        kept = rows.select(*self._schema.live.names(), *deleted)
        return Partial(groups={ROWS: kept}, late=self.output_schema.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - time plays no part here
        """Raises ConfigurationError for two rows of a key."""
        answered = self._distinct(groups[ROWS])
        before, others = self._before(answered, state[ROWS])
        is_kept = pl.repeat(True, answered.height, dtype=pl.Boolean, eager=True)  # noqa: FBT003 - a value
        if self._is_deleting:
            is_kept = ~answered[DELETED].fill_null(False)  # noqa: FBT003 - a value
        after, names = answered.select(before.columns), self.output_schema.names()
        was_there = before[HASH].is_not_null()
        is_news = is_kept & differs(after, before, before.columns)
        is_gone = was_there & ~is_kept
        gone = pl.concat([passing(before, is_gone), others])
        return Outcome(
            output=after.filter(is_news).select(names),
            retracted=pl.concat([before.filter(is_news & was_there), gone]).select(names),
            changes={ROWS: Changes(upserts=after.filter(is_news), deletes=gone)},
        )

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        return state[ROWS].scan().select(self.output_schema.names())

    def _before(
        self, answered: pl.DataFrame, state: KeyedState
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """For each row *answered* the one that it replaces, all null where there is none; and the
        rows that the answer takes away by not having them.
        """
        identity = self._schema.identity
        if isinstance(self._result, results.Replace):
            return aligned(state.scan(), chosen(answered, identity))
        before = state.find(answered)
        replaced = _replaced(self._result, answered, state)
        if replaced is None:
            return before, before.clear()
        return before, replaced.join(answered, on=identity, how="anti", nulls_equal=True)

    def _distinct(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows*, sorted by their identity, of which there is one each."""
        distinct = newest_per_identity(rows, self._schema.identity)
        if distinct.height == rows.height:
            return distinct
        keys = self._key
        twice = rows.filter(pl.struct(keys).is_duplicated()).sort(keys)
        first = twice.head(1).select(keys)
        count = twice.join(first, on=keys, how="semi", nulls_equal=True).height
        raise ConfigurationError(
            f"the answer of stage {self._uid!r} has {count} rows with {_values(first, keys)}, and "
            "its result has one row a key; choose one of them, dropDuplicates"
            f"({[*keys]!r}) or a row_number(), or name more columns as the key"
        )


class SparkBagOperator(RawRows):
    """Rows of an answer replace the whole result, or that of their partitions, without a key.

    Output is a stream of whole rows: those of which there are more than before, and of which there
    are fewer, as retractions.  State is a row for each distinct one, with the number of its copies.
    """

    def __init__(self, stage: StageNode, answer: pl.Schema) -> None:
        """*answer* are the columns of the function's answer.

        Raises:
            ConfigurationError: it has no column of the partitions.
        """
        code = stage.operation
        assert isinstance(code, SparkCode)
        self.output_schema = input_schema(answer)
        key_types(stage.uid, self.output_schema, stage.keys)
        require_distinct(stage.uid, self.output_schema)
        self._uid, self._result = stage.uid, code.result
        self._outside = _outside(stage.uid, code.result, self.output_schema)
        is_whole = isinstance(code.result, results.Replace)
        self._partitions = () if is_whole else stage.keys
        self._bag = Bag(self.output_schema, stage.keys, ttl_ms=None)
        self.tables = {ROWS: self._bag.schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - neither plays a part here
        """Raises ConfigurationError for a row without a partition, or of another one."""
        _refuse_nulls(self._uid, rows, self._partitions, self.output_schema)
        _refuse_outside(self._uid, rows, self._result, self._outside)
        return Partial(groups={ROWS: self._bag.weighed(rows)}, late=self.output_schema.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._bag.folded(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - time plays no part here
        answered, names = groups[ROWS], self.output_schema.names()
        replaced = _replaced(self._result, answered, state[ROWS])
        assert replaced is not None, "a result without a key is replaced"
        copies, more = pl.col(COPIES), pl.col(_MORE)
        both = [
            answered.with_columns(copies.alias(_MORE)),
            replaced.with_columns((-copies).alias(_MORE), pl.lit(0, pl.Int64).alias(COPIES)),
        ]
        by = self._bag.identity[1:]
        sums = [pl.col(HASH).first(), copies.sum(), more.sum()]
        moved = grouped(pl.concat(both), by, sums).filter(more != 0)
        rows, now = moved.select(names), moved.select(self._bag.schema.live.names())
        return Outcome(
            output=repeated(rows, moved[_MORE].clip(lower_bound=0)),
            retracted=repeated(rows, (-moved[_MORE]).clip(lower_bound=0)),
            changes={
                ROWS: Changes(upserts=now.filter(copies > 0), deletes=now.filter(copies == 0))
            },
        )


def _replaced(
    result: results.Result, answered: pl.DataFrame, state: KeyedState
) -> pl.DataFrame | None:
    """The rows that are there, and that an answer with the rows *answered* replaces as a whole;
    None if it replaces each by its key.
    """
    match result:
        case results.Replace():
            return state.scan()
        case results.ReplacePartitions():
            return state.lookup(answered)
        case _:
            return None


def _refuse_nulls(uid: str, rows: pl.DataFrame, keys: Sequence[str], schema: pl.Schema) -> None:
    for key in keys:
        without = rows.filter(pl.col(key).is_null())
        if without.height:
            raise ConfigurationError(
                f"the answer of stage {uid!r} has {key!r} null in a row with "
                f"{_values(without, schema.names())}, and its result is kept by that key; leave "
                f"such rows out, where({key + ' IS NOT NULL'!r}), or fill it"
            )


def _outside(
    uid: str, result: results.Result, columns: Mapping[str, pl.DataType]
) -> Compiled | None:
    """Whether a row is of a partition that the *result* does not declare; None if it may be any.

    Raises:
        ConfigurationError: the declared condition is none over these *columns*.
    """
    if not isinstance(result, results.ReplacePartitions) or result.where is None:
        return None
    try:
        return condition(f"NOT coalesce({result.where}, false)", columns)
    except NotCompiledError as error:
        raise ConfigurationError(
            f"the result of stage {uid!r} is declared by where={result.where!r}: {error}"
        ) from None


def _refuse_outside(
    uid: str, rows: pl.DataFrame, result: results.Result, outside: Compiled | None
) -> None:
    if outside is None:
        return
    assert isinstance(result, results.ReplacePartitions)
    found = filtered(rows, outside)
    if found.height:
        raise ConfigurationError(
            f"the answer of stage {uid!r} has a row of the partition "
            f"{_values(found, result.partitions)}, and its result is declared to replace those "
            f"where {result.where}; leave such rows out, or declare their partition, too"
        )


def _values(rows: pl.DataFrame, names: list[str] | tuple[str, ...]) -> str:
    """The first of *rows*, in words."""
    row = rows.select(names).row(0, named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())
