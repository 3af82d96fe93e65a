"""``Argument``: the values that one aggregate of a stage reads, in Polars and in Spark's SQL."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from sluice.subtask.operators.operator import FILTER, WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """The column that is aggregated under *name*; None for rows alone.

    Of an aggregate that ``has_where`` the rows carry a column that says whether they count.
    ``label`` is the aggregate as it was declared.
    """

    name: str
    label: str
    column: str | None
    dtype: pl.DataType
    has_where: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    @property
    def value(self) -> pl.Expr:
        """Null where the row does not count."""
        if self.column is None:
            return self._counted(pl.lit(True))  # noqa: FBT003 - a value
        is_float = self.dtype.is_float()
        value = without_negative_zero(self.column) if is_float else pl.col(self.column)
        return self._counted(value)

    def addend(self, total: pl.DataType) -> pl.Expr:
        """The value as it is added up to a *total* of that type.

        Adding numbers of 128 bits takes half as long as adding decimals.
        """
        return self.value.cast(pl.Int128() if self.dtype.is_integer() else total)

    @property
    def weight(self) -> pl.Expr:
        weight = self._counted(pl.col(WEIGHT).cast(pl.Int64))
        if self.column is None:
            return weight
        return pl.when(pl.col(self.column).is_not_null()).then(weight)

    @property
    def sql_value(self) -> str:
        if self.column is None:
            return "*"
        column = quoted(self.column)
        return f"({column} + {sql_zero(self.dtype)})" if self.dtype.is_float() else column

    @property
    def sql_where(self) -> str:
        return f" FILTER (WHERE {self.sql_passes})" if self.has_where else ""

    @property
    def sql_passes(self) -> str:
        return quoted(FILTER + self.name)

    def _counted(self, value: pl.Expr) -> pl.Expr:
        return pl.when(pl.col(FILTER + self.name)).then(value) if self.has_where else value


def without_negative_zero(column: str) -> pl.Expr:
    """A column of floats with 0.0 for -0.0: equal values must not depend on the order of rows.

    Adding 0.0 does not do it, as Polars optimizes that away.
    """
    value = pl.col(column)
    return pl.when(value == 0).then(value.abs()).otherwise(value).alias(column)


def quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def sql_zero(dtype: pl.DataType) -> str:
    return f"CAST(0 AS {sql_type(dtype)})"


def sql_type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if dtype.is_float():
        return "FLOAT" if dtype == pl.Float32() else "DOUBLE"
    return "BIGINT"
