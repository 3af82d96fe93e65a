"""``moments``: variance and standard deviation of a sample, from count, mean and squared distances.

The distances are from the mean (Welford), and two groups are combined by Chan's formula, so that
large values that differ little keep their precision; as with any sum of floats, the last bits
depend on the order of rows.
"""

from __future__ import annotations

import polars as pl

from sluice.subtask.operators.argument import Argument
from sluice.subtask.operators.kernels import BEFORE, Kernel


def moments(argument: Argument, *, is_root: bool) -> Kernel:
    """The variance, or its root; null of fewer than two values."""
    names = [f"_{part}_{argument.name}" for part in ("count", "mean", "squares")]
    states = dict(zip(names, (pl.Int64(), pl.Float64(), pl.Float64()), strict=True))
    value = argument.value.cast(pl.Float64)
    count, mean, squares = map(pl.col, names)
    counts, means, all_squares = (
        (pl.col(name), pl.col(BEFORE + name).fill_null(0)) for name in names
    )

    number = count.sum()
    middle = _or_zero(number, (mean * count).sum() / number)
    distance = mean - middle
    both = counts[0] + counts[1]
    apart = means[0] - means[1]
    shifted = means[1] + _or_zero(both, apart * counts[0] / both)
    between = _or_zero(both, apart * apart * counts[0] * counts[1] / both)

    variance = squares / (count - 1)
    return Kernel(
        name=argument.name,
        label=argument.label,
        states=states,
        result_type=pl.Float64(),
        partial=_named(
            names,
            value.count().cast(pl.Int64),
            value.mean().fill_null(0.0),
            (value.var(ddof=0) * value.count()).fill_null(0.0),
        ),
        combine=_named(names, number, middle, squares.sum() + (count * distance * distance).sum()),
        merge=_named(names, both, shifted, all_squares[0] + all_squares[1] + between),
        final=pl.when(count > 1).then(variance.sqrt() if is_root else variance),
        sql=None,
        reads=argument.reads,
        is_order_sensitive=True,
    )


def _or_zero(number: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(number > 0).then(value).otherwise(0.0)


def _named(names: list[str], *expressions: pl.Expr) -> tuple[pl.Expr, ...]:
    return tuple(e.alias(name) for name, e in zip(names, expressions, strict=True))
