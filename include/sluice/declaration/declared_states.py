"""The states of a function: those that its class declares, and the table that holds each.

All single values of a key are one row of one table, but for those with a TTL of their own, which
have a table each; each entry of a list or map is a row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from sluice.declaration.keyed_functions import (
    BroadcastState,
    OperatorListState,
    class_attributes,
    declared_operator_lists,
    operator_table_of,
)
from sluice.declaration.keyed_states import (
    OWN_STATES,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateTtlConfig,
    ValueState,
)
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import ProcessKeyed

if TYPE_CHECKING:
    from sluice.declaration.keyed_functions import KeyedProcessFunction

F = TypeVar("F", bound="KeyedProcessFunction")
SingleValue: TypeAlias = ValueState[Any] | ReducingState[Any] | AggregatingState[Any, Any, Any]
AnyState: TypeAlias = SingleValue | ListState[Any] | MapState[Any, Any]

VALUES = "values"


def declared_states(function: KeyedProcessFunction) -> Mapping[str, AnyState]:
    """The keyed states that the class of *function* declares, in the order of their names."""
    return {
        name: state
        for name, state in class_attributes(function)
        if isinstance(state, ValueState | ListState | MapState | ReducingState | AggregatingState)
    }


def declared_broadcasts(function: KeyedProcessFunction) -> Mapping[str, BroadcastState[Any, Any]]:
    """The broadcast states that the class of *function* declares, in the order of their names."""
    attributes = class_attributes(function)
    return {name: state for name, state in attributes if isinstance(state, BroadcastState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCopy(Generic[F]):
    """A copy of a function with copies of its states, which the runtime binds to entries."""

    function: F
    keyed: Mapping[str, AnyState]
    broadcast: Mapping[str, BroadcastState[Any, Any]]
    lists: Mapping[str, OperatorListState[Any]]


def with_own_states(function: F) -> FunctionCopy[F]:
    own = FunctionCopy(
        function=copy.copy(function),
        keyed={name: copy.copy(state) for name, state in declared_states(function).items()},
        broadcast={name: copy.copy(state) for name, state in declared_broadcasts(function).items()},
        lists={name: copy.copy(state) for name, state in declared_operator_lists(function).items()},
    )
    vars(own.function)[OWN_STATES] = {**own.keyed, **own.broadcast, **own.lists}
    return own


def table_of(state: AnyState) -> str:
    """The name of the table that holds *state*; it is part of the state's format."""
    match state:
        case ListState():
            return f"list:{state.name}"
        case MapState():
            return f"map:{state.name}"
        case ValueState() | ReducingState() | AggregatingState():
            return VALUES if state.ttl is None else own_table_of(state)


_BROADCAST = "broadcast:"  # Part of the state's format.


def broadcast_table_of(state: BroadcastState[Any, Any]) -> str:
    """The name of the table that holds a broadcast state."""
    return _BROADCAST + state.name


def is_broadcast_table(name: str) -> bool:
    return name.startswith(_BROADCAST)


def own_table_of(state: SingleValue) -> str:
    """The name of the table of a single value that has a TTL of its own."""
    return f"value:{state.name}"


def ttl_configs(function: KeyedProcessFunction) -> Mapping[str, StateTtlConfig]:
    """The TTL that a state declares, by the table of the state."""
    states = declared_states(function).values()
    return {table_of(state): state.ttl for state in states if state.ttl is not None}


def ttl_of_table(stage: StageNode, table: str) -> int | None:
    """The time that a row of *table* stays without an update, in milliseconds; None is for ever."""
    if isinstance(stage.operation, ProcessKeyed):
        if table.startswith(("broadcast:", "operator:")):
            return None
        config = ttl_configs(stage.operation.function).get(table)
        if table in stage.former_ttls_ms:
            return stage.former_ttls_ms[table]
        if config is not None:
            return config.cleanup_ms
    return stage.ttl_ms


def migrates(stage: StageNode, table: str) -> bool:
    """Whether rows of *table* may have to be migrated by the function of *stage*."""
    if not isinstance(stage.operation, ProcessKeyed):
        return False
    function = stage.operation.function
    keyed = declared_states(function).values()
    broadcast = declared_broadcasts(function).values()
    lists = declared_operator_lists(function).values()
    return table in {
        *(table_of(state) for state in keyed if state.migrations),
        *(broadcast_table_of(state) for state in broadcast if state.migrations),
        *(operator_table_of(state) for state in lists if state.migrations),
    }
