"""The states of a function: those that its class declares, and where each is kept.

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
    """The states that the class of *function* declares, in the order of their names."""
    found = {
        name: attribute
        for base in reversed(type(function).__mro__)
        for name, attribute in vars(base).items()
    }
    states: dict[str, AnyState] = {}
    for name in sorted(found):
        match found[name]:
            case (
                ValueState() | ListState() | MapState() | ReducingState() | AggregatingState()
            ) as state:
                states[name] = state
            case _:
                pass
    return states


def declared_broadcasts(
    function: KeyedProcessFunction,
) -> Mapping[str, BroadcastState[Any, Any]]:
    """The broadcast states that the class of *function* declares, in the order of their names."""
    found = {
        name: attribute
        for base in reversed(type(function).__mro__)
        for name, attribute in vars(base).items()
    }
    named = ((name, found[name]) for name in sorted(found))
    return {name: state for name, state in named if isinstance(state, BroadcastState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Generic[F]):
    """A copy of a function, and its own copies of its states; ``keyed`` are to be bound to a key.

    For the runtime.
    """

    function: F
    keyed: Mapping[str, AnyState]
    broadcast: Mapping[str, BroadcastState[Any, Any]]
    lists: Mapping[str, OperatorListState[Any]]


def with_own_states(function: F) -> Own[F]:
    own = Own(
        function=copy.copy(function),
        keyed={name: copy.copy(state) for name, state in declared_states(function).items()},
        broadcast={name: copy.copy(one) for name, one in declared_broadcasts(function).items()},
        lists={name: copy.copy(one) for name, one in declared_operator_lists(function).items()},
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


def broadcast_table_of(state: BroadcastState[Any, Any]) -> str:
    """The name of the table that holds a broadcast state; it is part of the state's format."""
    return f"broadcast:{state.name}"


def own_table_of(state: SingleValue) -> str:
    """The name of the table of a single value that has a TTL of its own."""
    return f"value:{state.name}"


def ttl_configs(function: KeyedProcessFunction) -> Mapping[str, StateTtlConfig]:
    """The TTL of each table of a state that declares one."""
    states = declared_states(function).values()
    return {table_of(state): state.ttl for state in states if state.ttl is not None}


def ttl_of_table(stage: StageNode, table: str) -> int | None:
    """After how many milliseconds without an update a row of *table* is gone; None if never."""
    if isinstance(stage.operation, ProcessKeyed):
        if table.startswith(("broadcast:", "operator:")):
            return None
        config = ttl_configs(stage.operation.function).get(table)
        if config is not None:
            return config.cleanup_ms
    return stage.ttl_ms


def migrates(stage: StageNode, table: str) -> bool:
    """Whether rows of *table* may have to be migrated by the function of *stage*."""
    if not isinstance(stage.operation, ProcessKeyed):
        return False
    function = stage.operation.function
    tables = {table_of(one) for one in declared_states(function).values() if one.migrations}
    tables |= {
        broadcast_table_of(one) for one in declared_broadcasts(function).values() if one.migrations
    }
    lists = declared_operator_lists(function).values()
    tables |= {operator_table_of(one) for one in lists if one.migrations}
    return table in tables
