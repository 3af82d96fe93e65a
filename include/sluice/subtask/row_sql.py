"""Filters and projections of a stage's result: SQL of single rows, computed by Polars."""

from __future__ import annotations

import re

import polars as pl

from sluice.declaration.sql_names import LITERAL, columns_in
from sluice.declaration.steps import NO_TOKEN, Filter, Step, tokens

_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\s+AS\s+(?P<alias>[A-Za-z_]\w*))?", re.IGNORECASE)

# Keywords where no value is expected.  A column called true, false or null has to be quoted, as it
# cannot be distinguished from the literal.
_RESERVED = re.compile(
    r"""
    all | and | as | between | by | case | cast | collate | distinct | else | end | except | exclude
    | exists | false | from | ilike | in | is | like | not | null | or | regexp | rlike | similar
    | then | to | true | when
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BESIDE = "_beside"
_LITERALS = ("date", "interval", "time", "timestamp")  # DATE '2026-01-01'.


def applied(step: Step, rows: pl.DataFrame, kept: tuple[str, ...] = ()) -> pl.DataFrame:
    """*rows* after one step; the columns *kept* stay, whatever is selected.

    Raises:
        PolarsError: the SQL names what is not there, or what Polars does not know.
    """
    names = [name for name in rows.columns if name not in kept]
    if isinstance(step, Filter):
        return rows.filter(expression(step.condition, names))
    chosen: list[pl.Expr] = []
    for column in step.columns:
        chosen += map(pl.col, names) if column.strip() == "*" else [expression(column, names)]
    if not rows.width:
        return rows.select(chosen)
    # Selected beside a column, literals have its height; alone they would be one row.
    beside = rows.select(*chosen, pl.nth(0).alias(_BESIDE), *(pl.col(name) for name in kept))
    return beside.drop(_BESIDE)


def expression(sql: str, names: list[str]) -> pl.Expr:
    """The expression *sql*, in which a column hides a function or keyword of its name."""
    found = _NAME.fullmatch(sql.strip())
    if found is not None and found["name"] in names:
        return pl.col(found["name"]).alias(found["alias"] or found["name"])
    return pl.sql_expr(_quoted(sql, set(names)))


def _quoted(sql: str, names: set[str]) -> str:
    words = [NO_TOKEN, NO_TOKEN, *tokens(sql), NO_TOKEN]
    values = {token.start for token in columns_in(sql) if not LITERAL.fullmatch(token.text)}
    parts, end = [], 0
    for two_before, before, token, following in zip(
        words, words[1:], words[2:], words[3:], strict=False
    ):
        if token.kind != "word":
            continue
        is_field = before.text == "."
        is_free = _RESERVED.fullmatch(token.text) is None or token.start in values
        is_column = token.text in names and is_free
        is_type = before.text.lower() == "as" or (two_before.text, before.text) == (":", ":")
        is_unit = (two_before.text.lower(), before.text) == ("extract", "(")
        is_literal = token.text.lower() in _LITERALS and following.kind == "text"
        is_call = following.text == "("
        if is_field or (is_column and not (is_type or is_unit or is_literal or is_call)):
            parts += [sql[end : token.start], f'"{token.text}"']
            end = token.start + len(token.text)
    return "".join([*parts, sql[end:]])
