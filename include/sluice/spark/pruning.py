"""The partitions of a source that a stage need not read: a filter on their columns drops all rows.

These are columns whose value a partition's name tells, as the names of folders do.  Only filters
that stand directly behind the source are looked at, each part of an AND by itself.  What Polars
does not compute as Spark does, or what fails for a value, prunes nothing.  The epoch is the same
either way: position, limits and event times are those of all its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import polars as pl
import pyarrow as pa

from sluice.core.plan import Slice
from sluice.declaration.expressions import Filter, Step
from sluice.declaration.nodes import Input
from sluice.declaration.sql import Sql, parsed
from sluice.declaration.sql_tree import Call
from sluice.errors import ConfigurationError
from sluice.job.places import open_source_at
from sluice.operators.sql import NotCompiledError, compiled, filtered
from sluice.spark.tasks import StageRun
from sluice.state.segments import to_frame


@dataclass(frozen=True, slots=True)
class PrunedInput:
    """The slices of an epoch that a stage reads, and those of which no row passes its filters."""

    kept: tuple[Slice, ...]
    pruned: tuple[Slice, ...] = ()


def pruned_input(run: StageRun, given: Input) -> PrunedInput:
    """The slices of *given*, an input of the stage that reads a source.

    Of lines that Spark decodes, and several inputs read, none is pruned: one of them reports the
    malformed lines of all.
    """
    cut = run.plan.source(given.producer)
    if not _filters(given.steps):
        return PrunedInput(cut.slices)
    source = open_source_at(run.job, cut, run.configuration.params)
    if source.decoding is not None and _readers(run, given.producer) > 1:
        return PrunedInput(cut.slices)
    return pruned_slices(cut.slices, given.steps, source.partition_values)


def pruned_slices(
    slices: Sequence[Slice],
    steps: Sequence[Step],
    values_of: Callable[[Sequence[str]], pa.Table | None],
) -> PrunedInput:
    """*slices*, by the filters at the beginning of *steps*.  See ``Source.partition_values``."""
    partitions = list(dict.fromkeys(piece.partition for piece in slices))
    values = values_of(partitions)
    if values is None:
        return PrunedInput(tuple(slices))
    rows = to_frame(values)
    schema = rows.schema
    number = "".join((*schema, "_"))  # No column has that name, whatever those of folders are.
    rows = rows.with_columns(pl.Series(number, range(len(partitions)), pl.Int64()))
    for condition in _filters(steps):
        for part in _parts(parsed(condition)):
            try:
                holds = compiled(part, schema)
                if holds.dtype == pl.Boolean():
                    rows = filtered(rows, holds)
            except (NotCompiledError, ConfigurationError):
                continue
    kept = {partitions[place] for place in rows[number]}
    return PrunedInput(
        tuple(piece for piece in slices if piece.partition in kept),
        tuple(piece for piece in slices if piece.partition not in kept),
    )


def _filters(steps: Sequence[Step]) -> list[str]:
    first = takewhile(lambda step: isinstance(step, Filter), steps)
    return [step.condition for step in first if isinstance(step, Filter)]


def _parts(condition: Sql) -> Iterator[Sql]:
    """The conditions that *condition* joins with AND."""
    tree = condition.tree
    if isinstance(tree, Call) and tree.function == "and":
        for argument in tree.arguments:
            yield from _parts(replace(condition, tree=argument))
    else:
        yield condition


def _readers(run: StageRun, uid: str) -> int:
    inputs = [given for stage in run.job.pipeline.consumers_of(uid) for given in stage.inputs]
    return sum(given.producer == uid for given in inputs)
