"""Operator lists in one subtask: its own elements, those of all, and what it changed.

The table of a list has a row for each element: the subtask that has it, its place, and how many
subtasks there were.  A subtask's rows have the first hash of its range, so they are of its files.
Where there were others, all rows are dealt out anew, and written by their new owners; each deletes
what is in its range of hashes and has moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.operator_state import dealt_out
from sluice.core.plan import TaskPlan
from sluice.declaration.keyed_states import Entries
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import ProcessKeyed
from sluice.declaration.operator_states import (
    OperatorListState,
    UnionListState,
    declared_operator_lists,
    operator_table_of,
)
from sluice.subtask.operators.keyed_entries import VALUE, declared_columns
from sluice.subtask.operators.keyed_values import column_type, from_column, to_column
from sluice.subtask.operators.operator import Changes
from sluice.subtask.state.keyed import StateSchema
from sluice.subtask.state.segments import HASH

SUBTASK = "_subtask"
PLACE = "_index"
PARALLELISM = "_parallelism"


def list_tables(stage: StageNode) -> Mapping[str, StateSchema]:
    """The tables of the operator lists of a stage's function."""
    assert isinstance(stage.operation, ProcessKeyed)
    return {
        operator_table_of(state): StateSchema(
            columns=pl.Schema(
                {
                    SUBTASK: pl.Int64(),
                    PLACE: pl.Int64(),
                    VALUE: column_type(state.value_type),
                    PARALLELISM: pl.Int64(),
                }
            ),
            key_columns=(SUBTASK, PLACE),
            declared=declared_columns(stage, operator_table_of(state)),
        )
        for state in declared_operator_lists(stage.operation.function).values()
    }


class OperatorLists:
    """The lists of one subtask in one epoch."""

    def __init__(
        self,
        tables: Mapping[str, StateSchema],
        rows: Mapping[str, pl.DataFrame],
        task: TaskPlan,
        subtask: int,
    ) -> None:
        """*rows* are those of all subtasks behind the barrier before, by table."""
        self._tables = tables
        self._parallelism = task.parallelism
        self._subtask = subtask
        most, count = task.max_parallelism, task.parallelism
        ranges = [hash_range(most, key_group_range(most, count, n)) for n in range(count)]
        self._owned = ranges[subtask]
        self._firsts = [first for first, _ in ranges]
        self._before = {name: frame.sort(SUBTASK, PLACE) for name, frame in rows.items()}
        self._all = {
            name: [from_column(value) for value in frame[VALUE]]
            for name, frame in self._before.items()
        }
        parts = dealt_out({name: len(elements) for name, elements in self._all.items()}, count)
        self._entries: dict[str, Entries[int, Any]] = {
            name: Entries(
                self._own(frame)
                if self._is_settled(frame)
                else dict(enumerate(self._all[name][slice(*parts[name][subtask])]))
            )
            for name, frame in self._before.items()
        }

    def bind(self, lists: Mapping[str, OperatorListState[Any]]) -> None:
        for one in lists.values():
            table = operator_table_of(one)
            if isinstance(one, UnionListState):
                one.bind_union(self._entries[table], self._all[table])
            else:
                one.bind(self._entries[table])

    def changes(self) -> dict[str, Changes]:
        """What makes of the rows in this subtask's range those that it has now."""
        found = {}
        for name, schema in self._tables.items():
            first, last = self._owned
            before = {
                tuple(row[:3]): tuple(row[3:])
                for row in self._before[name]
                .filter(pl.col(HASH).is_between(first, last))
                .select(HASH, SUBTASK, PLACE, VALUE, PARALLELISM)
                .iter_rows()
            }
            now = {
                (first, self._subtask, place): (to_column(value), self._parallelism)
                for place, value in self._entries[name].current.items()
            }
            upserts = [(*key, *row) for key, row in now.items() if before.get(key) != row]
            deletes = [key for key in before if key not in now]
            found[name] = Changes(
                upserts=pl.DataFrame(upserts, schema.live, orient="row"),
                deletes=pl.DataFrame(
                    deletes, {one: schema.live[one] for one in schema.identity}, orient="row"
                ),
            )
        return found

    def _own(self, rows: pl.DataFrame) -> dict[int, Any]:
        mine = rows.filter(pl.col(SUBTASK) == self._subtask).select(PLACE, VALUE)
        return {place: from_column(value) for place, value in mine.iter_rows()}

    def _is_settled(self, rows: pl.DataFrame) -> bool:
        """Whether each row is where a subtask of today keeps it."""
        kept = {(self._parallelism, subtask, at) for subtask, at in enumerate(self._firsts)}
        return kept.issuperset(rows.select(PARALLELISM, SUBTASK, HASH).unique().iter_rows())
