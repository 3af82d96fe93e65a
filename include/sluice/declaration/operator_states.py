"""Operator list state: a list of each subtask, whichever key is processed; Flink's, in Python.

    class Batched(KeyedProcessFunction):
        waiting = OperatorListState(str)

        def process(self, row: Row, context: Context) -> None:
            self.waiting.add(row["line"])

        def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
            if len(waiting := self.waiting.get()) >= 1_000:
                self.waiting.clear()
                yield {"lines": "\\n".join(waiting)}

At another parallelism the elements of all subtasks are dealt out in turn (getListState).  Of a
``UnionListState`` each subtask reads those of all (getUnionListState), and keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sluice.declaration.keyed_states import Elements, Entries, Migrations
from sluice.errors import ConfigurationError

V = TypeVar("V")


class OperatorListState(Elements[V]):
    """A list of the subtask: ``waiting = OperatorListState(str)``.

    It has no TTL, as in Flink, and is held in memory.
    """

    _USE = "that of a subtask; use it where a subtask processes keys only"

    def __init__(self, of: type[V], *, migrations: Migrations[V] | None = None) -> None:
        super().__init__(of, migrations=migrations)


class UnionListState(OperatorListState[V]):
    """A list of which each subtask reads the elements of all: ``seen = UnionListState(int)``."""

    def __init__(self, of: type[V], *, migrations: Migrations[V] | None = None) -> None:
        super().__init__(of, migrations=migrations)
        self._union: Sequence[V] = ()

    def get(self) -> list[V]:
        """The elements of all subtasks behind the barrier before, in the order of the subtasks.

        What this subtask adds or updates is among them behind the next one.
        """
        _ = self._entries
        return list(self._union)

    def bind_union(self, entries: Entries[int, V], union: Sequence[V]) -> None:
        """*entries* are this subtask's, *union* those of all.  For the runtime."""
        self.bind(entries)
        self._union = union


def declared_operator_lists(function: object) -> Mapping[str, OperatorListState[object]]:
    """The operator lists that the class of *function* declares, in the order of their names."""
    found = {
        name: attribute
        for base in reversed(type(function).__mro__)
        for name, attribute in vars(base).items()
    }
    named = ((name, found[name]) for name in sorted(found))
    return {name: state for name, state in named if isinstance(state, OperatorListState)}


def operator_table_of(state: OperatorListState[V]) -> str:
    """The name of the table that holds an operator list; it is part of the state's format."""
    return f"operator:{state.name}"


def refuse_operator_lists(uid: str, function: object, why: str) -> None:
    """Raises ConfigurationError if *function* declares an operator list: it cannot have one."""
    if lists := declared_operator_lists(function):
        raise ConfigurationError(
            f"{uid!r}: {type(function).__name__} declares operator list state "
            f"{', '.join(map(repr, lists))}, but {why}; only a function of process_keyed() has it"
        )
