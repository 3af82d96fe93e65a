"""The columns of a join: those that are kept in state of each input, and those of the result.

Key columns are kept under the names they have on the left.  The result has the columns of the left,
then those of the right but key columns that are called alike on both sides, which come once, from
whichever side has the row (SQL's USING); a semi or anti join has those of the left alone.  As in
SQL and in Flink, a null in a key column equals nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import RegularJoinKind
from sluice.errors import ConfigurationError
from sluice.subtask.operators.operator import (
    column_type,
    input_schema,
    key_types,
    require_distinct,
    wrong_type,
)
from sluice.subtask.operators.panes import INSTANT, require_append_only
from sluice.subtask.state.segments import HASH

LEFT = "left"
RIGHT = "right"
SIDES = (LEFT, RIGHT)
US_PER_MS = 1_000

_NO_COLUMNS: Mapping[str, pl.DataType] = {}


class JoinColumns:
    """``inputs`` has the columns of each side, ``kept`` those that the join keeps of its rows."""

    def __init__(
        self,
        stage: StageNode,
        left: pl.Schema,
        right: pl.Schema,
        how: RegularJoinKind,
        *,
        apart: Sequence[str] = (),
        added: Mapping[str, pl.DataType] = _NO_COLUMNS,
        ours: Sequence[str] = (),
        takes_updates: bool = False,
    ) -> None:
        """Columns *apart* of the inputs are not among those kept; *added* end the result.

        *ours* are the names of further columns in the state.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        if not takes_updates:
            require_append_only(stage, "such a join")
        self.inputs = (input_schema(left), input_schema(right))
        self.keys = stage.inputs[0].keys
        _check_keys(stage, *self.inputs)
        own_names = dict(zip(stage.inputs[1].keys, self.keys, strict=True))
        left_kept = {name: of for name, of in self.inputs[0].items() if name not in apart}
        given = {
            name: of
            for name, of in self.inputs[1].items()
            if how not in ("semi", "anti") and name not in apart and own_names.get(name) != name
        }
        _check_names(stage, self.keys, apart, [name for name in given if name in left_kept])
        key_columns = {key: left_kept[key] for key in self.keys}
        others = {name: of for name, of in given.items() if name not in own_names}
        self.kept = (pl.Schema(left_kept), pl.Schema({**key_columns, **others}))
        self.result = pl.Schema({**left_kept, **given, **added})
        require_distinct(stage.uid, [*left_kept, *given, *added])
        for kept in self.kept:
            require_distinct(stage.uid, [*kept, *added, *ours])
        keys = [pl.col(name).alias(kept) for name, kept in own_names.items()]
        self._keeping = ([pl.col(*left_kept)], [*keys, *(pl.col(name) for name in others)])
        self._own_names = own_names
        self._given = tuple(given)
        self._giving = [pl.col(self.kept_name(name)).alias(name) for name in given]

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.keys)

    def kept_name(self, name: str) -> str:
        """The name in state of a column of the right input."""
        return self._own_names.get(name, name)

    def of_input(self, rows: pl.DataFrame, side: int, *more: pl.Expr) -> pl.DataFrame:
        """The rows of an input as they are kept in state: hash, kept columns, and *more*."""
        return rows.select(HASH, *self._keeping[side], *more)

    def distinct_keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(self.key).unique()

    def of_right(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The columns of the result that come from rows of the right input."""
        return rows.select(self._giving)

    def without_right(self, left: pl.DataFrame) -> pl.DataFrame:
        """The result for left rows without a partner, with its hash."""
        nulls = [pl.lit(None, self.result[name]).alias(name) for name in self._given]
        return left.select(HASH, *self.kept[0], *nulls)

    def without_left(self, right: pl.DataFrame) -> pl.DataFrame:
        """The result for right rows without a partner, with its hash."""
        known = {name: self.kept_name(name) for name in self._given}
        known |= {name: name for name, kept in self._own_names.items() if name == kept}
        columns = [
            (pl.col(known[name]) if name in known else pl.lit(None, dtype)).alias(name)
            for name, dtype in self.result.items()
        ]
        return right.select(HASH, *columns)

    def joined(
        self,
        left: pl.DataFrame,
        right: pl.DataFrame,
        how: Literal["inner", "left"],
        also_on: Sequence[str] = (),
    ) -> pl.DataFrame:
        """The result for all pairs, with hash and *also_on*; in order of *left*, then *right*."""
        on = [*self.key, *also_on]
        return left.select(*dict.fromkeys((HASH, *self.kept[0], *also_on))).join(
            right.select(*on, *self._giving), on=on, how=how, maintain_order="left_right"
        )

    def matched(
        self,
        left: pl.DataFrame,
        right: pl.DataFrame,
        how: Literal["semi", "anti"],
        also_on: Sequence[str] = (),
    ) -> pl.DataFrame:
        """The rows of *left* with a partner in *right*, or without one, as *how* says; in order."""
        on = [*self.key, *also_on]
        return left.join(right.select(on), on=on, how=how, maintain_order="left")


def require_instant(uid: str, schema: pl.Schema, column: str | None, purpose: str) -> str:
    """The name of a column that must hold instants.

    Raises:
        ConfigurationError: it was not named, is not there, or has another type.
    """
    if column is None:
        raise ConfigurationError(
            f"stage {uid!r} needs an input with event time; name it where the source is declared: "
            "source(..., event_time='column')"
        )
    if column_type(uid, schema, column, purpose) != INSTANT:
        raise wrong_type(uid, schema, column, f"{purpose}, which needs {INSTANT}")
    return column


def _check_names(
    stage: StageNode, keys: Sequence[str], apart: Sequence[str], on_both_sides: Sequence[str]
) -> None:
    for name in apart:
        if name in keys:
            raise ConfigurationError(
                f"stage {stage.uid!r} cannot be keyed by {name!r}, which its join compares "
                "anyway; key it by the other columns"
            )
    if on_both_sides:
        raise ConfigurationError(
            f"stage {stage.uid!r} has a column {on_both_sides[0]!r} on both sides; "
            "rename it on one of them with select()"
        )


def _check_keys(stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
    names = [given.keys for given in stage.inputs]
    assert len(names) == len(SIDES), "a join has two inputs"
    if len(names[0]) != len(names[1]):
        raise ConfigurationError(
            f"stage {stage.uid!r} joins {len(names[0])} key columns ({', '.join(names[0])}) with "
            f"{len(names[1])} ({', '.join(names[1])}); key both sides by as many"
        )
    types = [
        key_types(stage.uid, schema, keys)
        for schema, keys in zip((left, right), names, strict=True)
    ]
    for mine, other in zip(*names, strict=True):
        if types[0][mine] != types[1][other]:
            raise ConfigurationError(
                f"stage {stage.uid!r} joins {mine!r} of type {types[0][mine]} with {other!r} of "
                f"type {types[1][other]}, whose hashes never meet; cast one of them with select()"
            )
