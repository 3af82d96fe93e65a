"""The tables of a ``KeyedProcessFunction``'s state, and the entries that it reads and writes.

An entry is written to the table only if the function changed it or, with a TTL, set it at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import polars as pl

from sluice.declaration.declared_states import declared_states, table_of
from sluice.declaration.keyed_process import KeyedProcessFunction
from sluice.declaration.keyed_states import Entries, ListState, MapState
from sluice.declaration.nodes import StageNode
from sluice.subtask.operators.keyed_timers import PLACE
from sluice.subtask.operators.keyed_values import column_type, from_column, to_column
from sluice.subtask.operators.operator import Changes, require_distinct
from sluice.subtask.state.keyed import KeyedState, StateSchema

INDEX = "_index"
MAP_KEY = "_map_key"
VALUE = "_value"

# State values are of the types that the function declared, which differ from state to state.
AnyEntries = Entries[Any, Any]
_Row = tuple[Any, ...]


def state_tables(
    stage: StageNode, key_types: pl.Schema, function: KeyedProcessFunction
) -> dict[str, StateSchema]:
    """The tables of the states that *function* declares, by name.

    Raises:
        ConfigurationError: a state is called like a key column.
    """
    columns: dict[str, dict[str, pl.DataType]] = defaultdict(dict)
    sub_keys: dict[str, tuple[str, ...]] = {}
    for name, state in declared_states(function).items():
        table = table_of(state)
        value_type = column_type(state.value_type)
        match state:
            case ListState():
                columns[table] = {INDEX: pl.Int64(), VALUE: value_type}
                sub_keys[table] = (INDEX,)
            case MapState():
                columns[table] = {MAP_KEY: column_type(state.key_type), VALUE: value_type}
                sub_keys[table] = (MAP_KEY,)
            case _:
                columns[table][name] = value_type
    for others in columns.values():
        require_distinct(stage.uid, [*key_types, *others, PLACE])
    return {
        table: StateSchema(
            columns=pl.Schema({**key_types, **others}),
            key_columns=tuple(key_types),
            sub_key_columns=sub_keys.get(table, ()),
            ttl_ms=stage.ttl_ms,
        )
        for table, others in columns.items()
    }


class EntryTable:
    """One table in one epoch; a key is addressed by its place among *keys*, those touched."""

    def __init__(self, schema: StateSchema, state: KeyedState, keys: pl.DataFrame) -> None:
        self._schema = schema
        self._keys = keys
        self._others = [name for name in schema.columns if name not in schema.key_columns]
        self._holds_values = not schema.sub_key_columns
        self._has_tuples = any(isinstance(schema.columns[n], pl.Struct) for n in self._others)
        self._stored: dict[int, list[_Row]] = defaultdict(list)
        self._upserts: list[_Row] = []
        self._deletes: list[_Row] = []
        rows = state.lookup(keys).join(
            keys.with_row_index(PLACE),
            on=list(schema.key),
            nulls_equal=True,
            maintain_order="left",
        )
        for place, *row in rows.select(PLACE, *self._others).iter_rows():
            values = map(from_column, row) if self._has_tuples else row
            self._stored[place].append(tuple(values))

    def entries(self, place: int) -> AnyEntries:
        """The entries of the key at *place*: values by name, or elements by index or key."""
        rows = self._stored.get(place, [])
        if not self._holds_values:
            return Entries(dict(rows))
        named = (
            (name, value) for row in rows for name, value in zip(self._others, row, strict=True)
        )
        return Entries({name: value for name, value in named if value is not None})

    def collect(self, place: int, entries: AnyEntries) -> None:
        """Add the changed *entries* of the key at *place* to the changes of the table."""
        if self._holds_values:
            self._collect_values(place, entries)
            return
        for key in entries.written:
            if key not in entries.current:
                if key in entries.stored:
                    self._deletes.append((place, key))
            elif self._is_new(entries.current[key], entries.stored.get(key)):
                self._upserts.append((place, key, entries.current[key]))

    def changes(self) -> Changes:
        return Changes(
            upserts=self._frame(self._upserts, self._others),
            deletes=self._frame(self._deletes, self._schema.sub_key_columns),
        )

    def _collect_values(self, place: int, entries: AnyEntries) -> None:
        if not entries.written:
            return
        if entries.current and self._is_new(entries.current, entries.stored):
            row = (entries.current.get(name) for name in self._others)
            self._upserts.append((place, *row))
        elif entries.stored and not entries.current:
            self._deletes.append((place,))

    def _is_new(self, current: object, stored: object) -> bool:
        return self._schema.ttl_ms is not None or current != stored

    def _frame(self, rows: list[_Row], names: Iterable[str]) -> pl.DataFrame:
        schema = {PLACE: pl.Int64(), **{name: self._schema.columns[name] for name in names}}
        if self._has_tuples:
            rows = [tuple(map(to_column, row)) for row in rows]
        frame = pl.DataFrame(rows, schema, orient="row")
        return self._keys[frame[PLACE]].hstack(frame.drop(PLACE))
