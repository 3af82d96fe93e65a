"""The states of a ``KeyedProcessFunction`` as tables, and the entries that it reads and writes.

An entry is written to the table only if the function changed it or, with a TTL, set it at all.  A
tuple is kept as a struct whose fields are ``f0``, ``f1`` and so on, as in Flink's Tuple2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, get_args

import polars as pl

from sluice.declaration.declared_states import (
    VALUES,
    broadcast_table_of,
    declared_broadcasts,
    declared_states,
    own_table_of,
    table_of,
    ttl_of_table,
)
from sluice.declaration.keyed_functions import (
    KeyedProcessFunction,
    declared_operator_lists,
    operator_table_of,
)
from sluice.declaration.keyed_states import (
    Entries,
    ListState,
    MapState,
    State,
    StateTtlConfig,
    checked_value,
    is_tuple,
)
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import ProcessKeyed
from sluice.operators.declared_columns import declared_type
from sluice.operators.operator import require_distinct
from sluice.state.keyed import Changes, KeyedState
from sluice.state.segments import WRITTEN, DeclaredColumn, StateSchema

PLACE = "_place"  # The place of a key among those that an epoch touches.
INDEX = "_index"
MAP_KEY = "_map_key"
VALUE = "_value"

# State values are of the types that the function declared, which differ from state to state.
AnyEntries = Entries[Any, Any]
_Row = tuple[Any, ...]


def function_state_tables(
    stage: StageNode, key_types: pl.Schema, function: KeyedProcessFunction
) -> dict[str, StateSchema]:
    """The tables of the states that *function* declares, by name.

    Raises:
        ConfigurationError: a state is called like a key column.
    """
    columns: dict[str, dict[str, pl.DataType]] = defaultdict(dict)
    sub_keys: dict[str, tuple[str, ...]] = {}
    refused: dict[str, dict[str, str]] = defaultdict(dict)
    for name, state in declared_states(function).items():
        table = table_of(state)
        value_type = state_column_type(state.value_type)
        match state:
            case ListState():
                columns[table] = {INDEX: pl.Int64(), VALUE: value_type}
                sub_keys[table] = (INDEX,)
            case MapState():
                columns[table] = {MAP_KEY: state_column_type(state.key_type), VALUE: value_type}
                sub_keys[table] = (MAP_KEY,)
            case _:
                columns[table][name] = value_type
                columns[VALUES] |= {}
                if table != VALUES:
                    refused[VALUES][name] = _moved(name, "had the TTL of its stage", "its own")
    for others in columns.values():
        require_distinct(stage.uid, [*key_types, *others, PLACE])
    return {
        table: StateSchema(
            columns=pl.Schema({**key_types, **others}),
            key_columns=tuple(key_types),
            sub_key_columns=sub_keys.get(table, ()),
            ttl_ms=ttl_of_table(stage, table),
            refused=refused.get(table, {}),
            declared=declared_columns(stage, table),
        )
        for table, others in columns.items()
    }


def former_tables(key_types: pl.Schema, function: KeyedProcessFunction) -> dict[str, StateSchema]:
    """Tables that values with a TTL of their own would have; a row of one is refused."""
    return {
        own_table_of(state): StateSchema(
            columns=key_types,
            key_columns=tuple(key_types),
            refused={name: _moved(name, "had a TTL of its own", "that of its stage")},
        )
        for name, state in declared_states(function).items()
        if table_of(state) == VALUES and not isinstance(state, ListState | MapState)
    }


def _moved(name: str, before: str, now: str) -> str:
    return (
        f"state {name!r} {before} and now has {now}, and its values do not follow; declare it "
        "under another name"
    )


def declared_columns(stage: StageNode, table: str) -> dict[str, DeclaredColumn]:
    """The columns of *table* that hold values of states, if the stage is a keyed function."""
    if not isinstance(stage.operation, ProcessKeyed):
        return {}
    function = stage.operation.function
    for broadcast in declared_broadcasts(function).values():
        if broadcast_table_of(broadcast) == table:
            return {VALUE: _declared_column(broadcast)}
    for operator_list in declared_operator_lists(function).values():
        if operator_table_of(operator_list) == table:
            return {VALUE: _declared_column(operator_list)}
    return {
        VALUE if isinstance(state, ListState | MapState) else name: _declared_column(state)
        for name, state in declared_states(function).items()
        if table_of(state) == table
    }


def _declared_column(state: State[Any, Any]) -> DeclaredColumn:
    """The column of the state's values, with what makes them of values of other types."""
    return DeclaredColumn(
        state=state.name,
        dtype=state_column_type(state.value_type),
        is_positional=is_tuple(state.value_type),
        migrations=tuple(
            (state_column_type(before), _migration(state, migrate))
            for before, migrate in state.migrations.items()
        ),
    )


def _migration(
    state: State[Any, Any], migrate: Callable[[object], object]
) -> Callable[[object], object]:
    def migrated(stored: object) -> object:
        value = from_column(stored)
        if value is None:
            return None
        return to_column(checked_value(state.name, state.value_type, migrate(value)))

    return migrated


class EntryTable:
    """One table of state in one epoch; a key is addressed by its place among the epoch's *keys*."""

    def __init__(
        self,
        schema: StateSchema,
        state: KeyedState,
        keys: pl.DataFrame,
        ttl: StateTtlConfig | None = None,
        now_ms: int = 0,
    ) -> None:
        """*ttl* is that of the state itself, if any; *now_ms* is the epoch's processing time."""
        self._schema = schema
        self._is_refreshed_by_reads = ttl is not None and ttl.is_refreshed_by_reads
        self._keys = keys
        self._others = [name for name in schema.columns if name not in schema.key_columns]
        self._holds_values = not schema.sub_key_columns
        self._has_tuples = any(isinstance(schema.columns[n], pl.Struct) for n in self._others)
        self._stored: dict[int, list[_Row]] = defaultdict(list)
        self._upserts: list[_Row] = []
        self._deletes: list[_Row] = []
        self._expired: dict[int, set[Any]] = defaultdict(set)
        if not state.has_runs or keys.is_empty():
            return
        returns_expired = ttl is not None and ttl.returns_expired and ttl.ttl_ms is not None
        found = state.lookup(keys, is_dated=returns_expired).join(
            keys.with_row_index(PLACE),
            on=list(schema.key),
            nulls_equal=True,
            maintain_order="left",
        )
        for place, *row in found.select(PLACE, *self._others).iter_rows():
            values = map(from_column, row) if self._has_tuples else row
            self._stored[place].append(tuple(values))
        if ttl is not None and ttl.ttl_ms is not None and returns_expired:
            late = found.filter(pl.col(WRITTEN) <= now_ms - ttl.ttl_ms)
            for place, *row in late.select(PLACE, *self._others).iter_rows():
                self._expired[place] |= {*(self._others if self._holds_values else row[:1])}

    def entries(self, place: int) -> AnyEntries:
        """The entries of the key at *place*: values by name, or elements by index or key."""
        rows = self._stored.get(place, [])
        if self._holds_values:
            named = (
                (name, value) for row in rows for name, value in zip(self._others, row, strict=True)
            )
            stored = {name: value for name, value in named if value is not None}
        else:
            stored = dict(rows)
        return Entries(
            stored,
            expired=self._expired.get(place, ()),
            is_refreshed_by_reads=self._is_refreshed_by_reads,
        )

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
        if not rows:
            return pl.DataFrame(schema=self._keys.schema | schema).drop(PLACE)
        if self._has_tuples:
            rows = [tuple(map(to_column, row)) for row in rows]
        frame = pl.DataFrame(rows, schema, orient="row")
        return self._keys[frame[PLACE]].hstack(frame.drop(PLACE))


def state_column_type(declared: object) -> pl.DataType:
    """The type of the column that keeps values of the type *declared*, which state can hold."""
    if not is_tuple(declared):
        return declared_type("", "", declared)
    fields = get_args(declared)
    return pl.Struct({f"f{place}": state_column_type(field) for place, field in enumerate(fields)})


def to_column(value: object) -> object:
    if not isinstance(value, tuple):
        return value
    return {f"f{place}": field for place, field in enumerate(value)}


def from_column(value: object) -> object:
    """The value as it was written; None if there is none."""
    if not isinstance(value, dict):
        return value
    fields = tuple(value.values())
    return None if all(field is None for field in fields) else fields
