"""``PlainInput``: which columns are read of an input that needs no Spark, and what is made of them.

Its filters, its projections, and what its keys and aggregates compute are all plain SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import polars as pl
import pyarrow as pa

from sluice.declaration.steps import Projection, Step
from sluice.subtask.key_hash import can_hash
from sluice.subtask.operators.computed import Computed, to_compute
from sluice.subtask.plain_sql import PlainSql
from sluice.subtask.plain_steps import NotPlainError, PlainSteps, column, condition, plain_steps
from sluice.subtask.state.segments import HASH

_KNOWN = 256  # Inputs, of all pipelines that a process runs.


@dataclass(frozen=True, kw_only=True)
class PlainInput:
    """An input's columns, ``schema`` serialized by Arrow, and what is asked of them.

    ``renames`` are old and new names, ``key_expressions`` names and SQL; ``hashed``, ``wanted`` and
    ``columns`` as those of a ``Feed``.  Where Spark has to compute it, all but ``is_possible``
    raises NotPlainError.
    """

    schema: bytes
    steps: tuple[Step, ...]
    renames: tuple[tuple[str, str], ...]
    key_expressions: tuple[tuple[str, str], ...]
    hashed: tuple[str, ...]
    wanted: tuple[Computed, ...]
    columns: tuple[str, ...] | None

    @cached_property
    def is_possible(self) -> bool:
        """Whether everything that the declaration asks of this input is plain SQL."""
        try:
            result = self.result
        except NotPlainError:
            return False
        return all(name in result and can_hash(result[name]) for name in self.hashed)

    @cached_property
    def result(self) -> pl.Schema:
        """The columns of ``prepared``, and the hash."""
        prepared = self.prepared(self._raw.to_frame())
        return prepared.with_columns(pl.lit(None, pl.Int64()).alias(HASH)).schema

    @cached_property
    def paths(self) -> list[str]:
        """The columns and fields that have to be read, in the order of the schema."""
        return self.in_order(self._needed[2]) or [next(iter(self._raw))]  # Rows are counted only.

    def in_order(self, paths: Iterable[str]) -> list[str]:
        """*paths* in the order of the schema, each column or field once."""
        order = {name: place for place, name in enumerate(self._raw)}
        whole = {path for path in paths if "." not in path}
        parts = {path for path in paths if path.partition(".")[0] not in whole}
        return sorted(whole | parts, key=lambda path: (order[path.partition(".")[0]], path))

    def prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows* of the columns that were read, in the columns that the operator expects."""
        wanted, steps, _ = self._needed
        return (
            steps.apply(rows)
            .select(wanted)
            .with_columns(item.expression.alias(name) for name, item in self._computed.items())
        )

    @cached_property
    def _raw(self) -> pl.Schema:
        frame = pl.from_arrow(pa.ipc.read_schema(pa.py_buffer(self.schema)).empty_table())
        assert isinstance(frame, pl.DataFrame)
        return frame.schema

    @cached_property
    def _steps(self) -> PlainSteps:
        """The declared filters and projections, up to the columns that the stage reads."""
        renames = dict(self.renames)
        if any("." in name for name in self._raw):
            raise NotPlainError("a dot in a name looks like the path to a field")
        if not any(isinstance(step, Projection) for step in self.steps):
            for name in self._raw:
                column(name, self._raw)
        names = plain_steps(self.steps, self._raw).schema.names()
        if len({renames.get(name, name) for name in names}) < len(names):
            raise NotPlainError("two columns of one name")
        if HASH in (renames.get(name, name).lower() for name in names):
            raise NotPlainError("a column of ours")
        renaming = Projection(tuple(f"{name} AS {renames.get(name, name)}" for name in names))
        steps = (*self.steps, renaming) if set(renames) & set(names) else self.steps
        return plain_steps(steps, self._raw)

    @cached_property
    def _computed(self) -> dict[str, PlainSql]:
        """The columns that keys and aggregates compute beside those of ``_steps``."""
        known = self._steps.schema
        keys = {name: column(text, known) for name, text in self.key_expressions}
        if any(name in known for name in keys):
            raise NotPlainError("a key hides a column")
        return keys | {
            one.column: (condition if one.is_condition else column)(one.sql, known)
            for one in to_compute(self.wanted, [*known, *keys])
        }

    @cached_property
    def _needed(self) -> tuple[list[str], PlainSteps, set[str]]:
        """The columns that are used, the steps that compute them, and the paths they read."""
        wanted = self._steps.schema.names()
        if self.columns is not None:
            looked_at = {
                path.partition(".")[0] for one in self._computed.values() for path in one.reads
            }
            looked_at |= {*self.columns, *self.hashed}
            wanted = [name for name in wanted if name in looked_at]
        return (wanted, *self._steps.narrowed(wanted))


@lru_cache(_KNOWN)
def once(given: PlainInput) -> PlainInput:
    """*given*, or one equal to it of which this process knows the properties already: those of a
    stage stay the same from epoch to epoch.
    """
    return given
