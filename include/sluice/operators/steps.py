"""Filters and projections over rows: each step in the order in which it is written.

``applied`` computes one over the rows at hand, ``compiled_steps`` makes several ready for all rows
of a schema, to be narrowed to the columns that somebody reads.  Names are Spark's: that behind AS,
or the column's or field's own, as the step spells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import polars as pl

from sluice.declaration.expressions import Filter, Step
from sluice.declaration.places import WEIGHT
from sluice.declaration.sql import parsed
from sluice.operators.sql import (
    Compiled,
    NotCompiledError,
    Path,
    compiled,
    computed,
    condition,
    filtered,
    whole_column,
)

Selected: TypeAlias = Mapping[str, Compiled]  # A projection: its columns by name.


@dataclass(frozen=True, slots=True)
class CompiledSteps:
    """Steps over rows of one schema; ``schema`` is that of their result."""

    steps: tuple[Compiled | Selected, ...]
    schema: pl.Schema

    def narrowed(self, wanted: Iterable[Path]) -> tuple[CompiledSteps, set[Path]]:
        """The steps that *wanted* columns and fields need, and what is read for them."""
        reads = set(wanted)
        kept: list[Compiled | Selected] = []
        for step in reversed(self.steps):
            if isinstance(step, Compiled):
                reads |= {*step.reads}
                kept.append(step)
                continue
            needed = {name for name, *_ in reads}
            selected = {name: one for name, one in step.items() if name in needed}
            # Rows without a column would not be counted.
            selected = selected or dict(islice(step.items(), 1))
            reads = {path for one in selected.values() for path in one.reads}
            kept.append(selected)
        return CompiledSteps(tuple(reversed(kept)), self.schema), reads

    def apply(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Raises ConfigurationError for a row in which Spark would stop."""
        for step in self.steps:
            rows = _computed(step, rows)
        return rows


def compiled_steps(steps: Sequence[Step], schema: pl.Schema) -> CompiledSteps:
    """*steps* over rows of *schema*.

    Raises:
        NotCompiledError: a step names what is not there, or what only Spark can compute.
    """
    found: list[Compiled | Selected] = []
    for step in steps:
        found.append(_compiled(step, schema))
        schema = _behind(found[-1], schema)
    return CompiledSteps(tuple(found), schema)


def applied(step: Step, rows: pl.DataFrame, kept: Sequence[str] = ()) -> pl.DataFrame:
    """*rows* after one step; the columns *kept* stay, whatever is selected.

    Raises:
        NotCompiledError: the step names what is not there, or what only Spark can compute.
        ConfigurationError: it cannot be computed for one of the rows.
    """
    schema = {name: of for name, of in rows.schema.items() if name not in kept}
    return _computed(_compiled(step, schema), rows, kept)


def _compiled(step: Step, schema: Mapping[str, pl.DataType]) -> Compiled | Selected:
    if isinstance(step, Filter):
        return condition(step.condition, schema)
    found: dict[str, Compiled] = {}
    if WEIGHT in schema:  # It stays, whatever is selected.
        found[WEIGHT] = whole_column(WEIGHT, schema[WEIGHT])
    for text in step.columns:
        for name, one in _item(text, schema).items():
            if name in found and name != WEIGHT:
                raise NotCompiledError(f"two columns are called {name!r}")
            found[name] = one
    return found


def _item(text: str, schema: Mapping[str, pl.DataType]) -> Selected:
    sql = parsed(text)
    if sql.is_star:
        return {name: whole_column(name, of) for name, of in schema.items()}
    if sql.name is None:
        raise NotCompiledError(f"{text!r} has no name; write {text.strip()!r} AS ...")
    return {sql.name: compiled(sql, schema)}


def _behind(step: Compiled | Selected, schema: pl.Schema) -> pl.Schema:
    if isinstance(step, Compiled):
        return schema
    return pl.Schema({name: one.dtype for name, one in step.items()})


def _computed(
    step: Compiled | Selected, rows: pl.DataFrame, kept: Sequence[str] = ()
) -> pl.DataFrame:
    if isinstance(step, Compiled):
        return filtered(rows, step)
    return computed(rows, [*step.items()], kept)
