"""``Fold``: all aggregates of one stage, built from their declaration and computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import assert_never

import polars as pl

from sluice.declaration.aggregates import Aggregate, AggregateKind
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.subtask.key_hash import with_hash
from sluice.subtask.operators.argument import Argument
from sluice.subtask.operators.arguments import argument_of, ordering_of
from sluice.subtask.operators.grouping import grouped
from sluice.subtask.operators.kernels import (
    BEFORE,
    Kernel,
    averaged,
    counted,
    summed,
    total_type,
    weighed,
)
from sluice.subtask.operators.moment_kernels import moments
from sluice.subtask.operators.operator import COMPUTED, ROW_COUNT, WEIGHT
from sluice.subtask.operators.readings import reading_of
from sluice.subtask.operators.value_kernels import (
    collected,
    distinct_list,
    extreme,
    outermost,
)
from sluice.subtask.state.segments import HASH

# Rows of few windows are grouped window by window, by the key alone: that takes half the time of
# grouping by both (a million rows in 10 windows: 0.07 s to 0.13 s, not 0.12 s to 0.23 s).
_ROWS_PER_PART = 10_000

_INT64_VALUES = 2**63  # The number of an Int64's values in either direction from zero.

# The errors of Polars for decimal sums with too many digits, and for casts that cannot hold them.
_TOO_LARGE = ("overflow in decimal", "conversion from `decimal")

_SQL_NAMES: Mapping[pl.DataType, str] = {pl.Int64(): "BIGINT"}


class Fold:
    """A fold of rows into groups, of groups into fewer groups, and of groups into their state.

    ``states`` and ``results`` are the columns of a group and of its result.
    """

    def __init__(self, uid: str, kernels: Sequence[Kernel]) -> None:
        """*uid* is the stage's, for messages."""
        self._uid = uid
        self._kernels = tuple(kernels)
        self.states = {n: dtype for k in kernels for n, dtype in k.states.items()}
        self.kept = self.states | {n: dtype for k in kernels for n, dtype in k.kept.items()}
        self.results = {k.name: k.result_type for k in kernels}
        self.reads = tuple(dict.fromkeys(name for k in kernels for name in k.reads))
        self.is_order_sensitive = any(k.is_order_sensitive for k in kernels)

    @property
    def columns(self) -> list[str]:
        """The names of ``states``, before any two of them became one."""
        return [name for kernel in self._kernels for name in kernel.states]

    def reads_of(self, rows: pl.DataFrame, keys: Sequence[str]) -> list[str]:
        """The columns of *rows* that ``partial`` reads."""
        wanted = {HASH, *keys, *self.reads}
        return [n for n in rows.columns if n in wanted or n.startswith(COMPUTED)]

    def partial(
        self, rows: pl.DataFrame, keys: Sequence[str], within: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Fold rows into groups, one for each value of the key columns and the columns *within*.

        The hash is a function of the keys, and is not grouped by: it is carried along, or computed
        of the groups if *rows* are without it.  ``ROW_COUNT`` is the number of rows in each.
        """
        is_small = _smallness(rows)

        def folding(kernel: Kernel) -> tuple[pl.Expr, ...]:
            narrow = kernel.narrow
            return narrow.partial if narrow and is_small(narrow.reads) else kernel.partial

        return self._grouped(
            rows, keys, within, folding, [pl.len().cast(pl.Int64).alias(ROW_COUNT)]
        )

    def combine(
        self, groups: pl.DataFrame, keys: Sequence[str], within: Sequence[str] = ()
    ) -> pl.DataFrame:
        is_small = _smallness(groups)

        def folding(kernel: Kernel) -> tuple[pl.Expr, ...]:
            narrow = kernel.narrow
            return narrow.combine if narrow and is_small(narrow.state) else kernel.combine

        return self._grouped(groups, keys, within, folding)

    def combining(self) -> list[pl.Expr]:
        """``combine`` as expressions within a group by."""
        return [e for k in self._kernels for e in k.combine]

    def merge(self, groups: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """*groups* added to their state *before*, row by row; *before* is null for a new group."""
        return self._merged(groups, before, lambda both, _: both)

    def merge_kept(self, groups: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """``merge`` with state in the narrower types ``kept``, in which the result is, too.

        Raises:
            ConfigurationError: a sum does not fit the type of its result.
        """
        return self._merged(
            groups,
            before,
            lambda both, kernels: both.with_columns(
                pl.col(name).cast(dtype) for k in kernels for name, dtype in k.kept.items()
            ),
        )

    def _merged(
        self,
        groups: pl.DataFrame,
        before: pl.DataFrame,
        keep: Callable[[pl.DataFrame, Sequence[Kernel]], pl.DataFrame],
    ) -> pl.DataFrame:
        known = before.select(
            pl.col(name).cast(dtype).alias(BEFORE + name) for name, dtype in self.states.items()
        )
        both = pl.concat([groups, known], how="horizontal")
        merged = self._computed(
            lambda kernels: keep(both.with_columns(e for k in kernels for e in k.merge), kernels)
        )
        return merged.select(*groups.columns[: -len(self.states) or None], *self.states)

    def result(self, groups: pl.DataFrame, columns: Sequence[str | pl.Expr] = ()) -> pl.DataFrame:
        """The columns *columns* of *groups*, and the results of the aggregates.

        Raises:
            ConfigurationError: a sum does not fit the type of its result.
        """
        return self._computed(
            lambda kernels: groups.select(*columns, *(k.final.alias(k.name) for k in kernels))
        )

    def sql(self) -> Mapping[str, str] | None:
        """The columns of a group in Spark SQL; None if Spark cannot compute them all."""
        if any(kernel.sql is None for kernel in self._kernels):
            return None
        return {n: text for k in self._kernels for n, text in (k.sql or {}).items()}

    def _grouped(
        self,
        rows: pl.DataFrame,
        keys: Sequence[str],
        within: Sequence[str],
        fold: Callable[[Kernel], Iterable[pl.Expr]],
        more: Sequence[pl.Expr] = (),
    ) -> pl.DataFrame:
        return self._computed(
            lambda kernels: self._grouped_by(
                rows, keys, within, [*(e for k in kernels for e in fold(k)), *more]
            )
        )

    def _grouped_by(
        self,
        rows: pl.DataFrame,
        keys: Sequence[str],
        within: Sequence[str],
        expressions: Sequence[pl.Expr],
    ) -> pl.DataFrame:
        others = [name for name in within if name not in keys]
        names = [HASH, *keys, *others]
        if others and 0 < rows[others[0]].n_unique() * _ROWS_PER_PART <= rows.height:
            parts = rows.partition_by(others)
            first = [pl.col(name).first() for name in others]
            grouped = [self._group(part, keys, [*first, *expressions]) for part in parts]
            together = pl.concat(grouped)
        else:
            together = self._group(rows, [*keys, *others], expressions)
        if HASH not in rows.columns:
            together = with_hash(together, keys)
        return together.select(*names, pl.exclude(names))

    def _group(
        self, rows: pl.DataFrame, by: Sequence[str], expressions: Sequence[pl.Expr]
    ) -> pl.DataFrame:
        # All of a group are equal; the least is faster to find than the first.
        carried = [pl.col(HASH).min()] if HASH in rows.columns else []
        return grouped(rows, by, [*carried, *expressions], in_order=self.is_order_sensitive)

    def _computed(self, compute: Callable[[Sequence[Kernel]], pl.DataFrame]) -> pl.DataFrame:
        """The frame that *compute* makes with all kernels.

        Raises:
            ConfigurationError: a sum is too large; the message names it.
        """
        try:
            return compute(self._kernels)
        except pl.exceptions.PolarsError as error:
            for kernel in self._kernels:
                try:
                    compute([kernel])
                except pl.exceptions.PolarsError as cause:
                    raise self._too_large(kernel, cause) from error
            raise

    def _too_large(self, kernel: Kernel, cause: Exception) -> Exception:
        if not any(words in str(cause) for words in _TOO_LARGE):
            return cause
        sql = _SQL_NAMES.get(kernel.result_type, str(kernel.result_type))
        wider = "DECIMAL(38, 0)" if sql == "BIGINT" else "DOUBLE"
        return ConfigurationError(
            f"stage {self._uid!r} cannot compute {kernel.name!r}: {kernel.label} of some group "
            f"does not fit {sql}; aggregate a wider type, CAST(... AS {wider})"
        )


def kernels(
    stage: StageNode, aggregates: Mapping[str, Aggregate], schema: pl.Schema
) -> tuple[Kernel, ...]:
    """The kernels of a declaration, in its order, over rows that are only appended.

    *schema* is that of the rows as they come, with what is computed for the aggregates.

    Raises:
        ConfigurationError: a column is missing, or is of a type that cannot be aggregated so.
    """
    return tuple(
        kernel_of(stage, argument_of(stage.uid, name, aggregate, schema), aggregate, schema)
        for name, aggregate in aggregates.items()
    )


def kernel_of(
    stage: StageNode, argument: Argument, aggregate: Aggregate, schema: pl.Schema
) -> Kernel:
    """The kernel of one aggregate of *stage*, whose *argument* was found in *schema*.

    Raises:
        ConfigurationError: as of ``kernels``.
    """
    kind = aggregate.kind
    match kind:
        case AggregateKind.COUNT:
            return counted(argument, is_changelog=WEIGHT in schema)
        case AggregateKind.SUM | AggregateKind.AVG:
            total = total_type(argument.dtype)
            assert total is not None, "checked with the argument"
            if WEIGHT in schema:
                return weighed(argument, total, is_mean=kind is AggregateKind.AVG)
            return (averaged if kind is AggregateKind.AVG else summed)(argument, total)
        case AggregateKind.MIN | AggregateKind.MAX:
            return extreme(argument, smallest=kind is AggregateKind.MIN)
        case AggregateKind.FIRST | AggregateKind.LAST:
            by, dtype = ordering_of(stage, argument.name, aggregate, schema)
            return outermost(argument, by, dtype, first=kind is AggregateKind.FIRST)
        case AggregateKind.COUNT_DISTINCT:
            return distinct_list(argument)
        case AggregateKind.VARIANCE | AggregateKind.STDDEV:
            return moments(argument, is_root=kind is AggregateKind.STDDEV)
        case AggregateKind.COLLECT | AggregateKind.PERCENTILE | AggregateKind.STRING_AGG:
            return collected(argument, reading_of(aggregate, argument.dtype))
        case _:
            assert_never(kind)


def _smallness(rows: pl.DataFrame) -> Callable[[str], bool]:
    """A predicate on columns: no sum of values of this column of *rows* can overflow an Int64."""

    @cache
    def is_small(column: str) -> bool:
        values = rows[column]
        ends = [end for end in (values.min(), values.max()) if isinstance(end, int | Decimal)]
        return all(abs(int(end)) * rows.height < _INT64_VALUES for end in ends)

    return is_small
