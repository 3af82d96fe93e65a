"""Filters and projections of a source's rows that run without Spark: all are plain SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

from sluice.declaration.steps import Filter, Projection, Step
from sluice.subtask.plain_sql import PlainSql, plain_column, plain_condition

_Selected: TypeAlias = dict[str, PlainSql]  # A projection: its columns by name.


class NotPlainError(Exception):
    """SQL that only Spark can compute."""


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """``steps`` in the order in which they apply; ``schema`` is that of their result."""

    steps: tuple[PlainSql | _Selected, ...]
    schema: pl.Schema

    def narrowed(self, wanted: Iterable[str]) -> tuple[PlainSteps, set[str]]:
        """The steps that *wanted* columns need, and the paths that are read for them."""
        needed = {path.partition(".")[0]: None for path in wanted}
        reads = set(wanted)
        kept: list[PlainSql | _Selected] = []
        for step in reversed(self.steps):
            if isinstance(step, PlainSql):
                reads |= set(step.reads)
                kept.append(step)
            else:
                selected = {name: item for name, item in step.items() if name in needed}
                reads = {path for item in selected.values() for path in item.reads}
                kept.append(selected)
            needed = {path.partition(".")[0]: None for path in reads}
        return PlainSteps(tuple(reversed(kept)), self.schema), reads

    def apply(self, rows: pl.DataFrame) -> pl.DataFrame:
        for step in self.steps:
            rows = _applied(step, rows)
        return rows


def plain_steps(steps: Sequence[Step], schema: pl.Schema) -> PlainSteps:
    """The steps over rows of *schema*.

    Raises:
        NotPlainError: only Spark can compute one of them.
    """
    rows = schema.to_frame()
    plain: list[PlainSql | _Selected] = []
    for step in steps:
        plain.append(
            condition(step.condition, rows.schema)
            if isinstance(step, Filter)
            else _selected(step, rows.schema)
        )
        rows = _applied(plain[-1], rows)
    return PlainSteps(tuple(plain), rows.schema)


def column(text: str, schema: pl.Schema) -> PlainSql:
    found = plain_column(text, schema)
    if found is None:
        raise NotPlainError(text)
    return found


def condition(text: str, schema: pl.Schema) -> PlainSql:
    found = plain_condition(text, schema)
    if found is None:
        raise NotPlainError(text)
    return found


def _selected(step: Projection, schema: pl.Schema) -> _Selected:
    texts = [name for text in step.columns for name in (schema if text.strip() == "*" else (text,))]
    items = [column(text, schema) for text in texts]
    named = {item.expression.meta.output_name(): item for item in items}
    if len(named) < len(items):
        raise NotPlainError("two columns of one name")
    return named


def _applied(step: PlainSql | _Selected, rows: pl.DataFrame) -> pl.DataFrame:
    if isinstance(step, PlainSql):
        return rows.filter(step.expression)
    return rows.select(item.expression.alias(name) for name, item in step.items())
