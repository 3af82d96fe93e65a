"""Filters and projections that are written as texts of SQL (``sluice.declaration.sql``).

A step is a filter or a projection of single rows, where a stage reads a source or behind its
result; steps apply in the order in which they are written.  A step sees one row: aggregates and
window functions in it are refused, as their results would depend on where the barriers and the
subtasks are.  ``columns_read`` and ``computing`` reduce the steps to what a reader needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from sluice.declaration.arguments import user_line
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import (
    NO_TOKEN,
    WORD_VALUES,
    Call,
    Column,
    spelled,
    tokens,
)
from sluice.errors import ConfigurationError

MAX_MILLIS = (2**63 - 1) // 1000  # An instant is a 64-bit number of microseconds.


@dataclass(frozen=True, slots=True)
class Filter:
    condition: str
    line: str = user_line()


@dataclass(frozen=True, slots=True)
class Projection:
    """``columns`` are names or SQL, with ``*`` for every column there is."""

    columns: tuple[str, ...]
    line: str = user_line()


Step: TypeAlias = Filter | Projection


def written(steps: Sequence[Step]) -> str:
    """*steps* as they are declared: ``where('a > 1').select('a', 'b')``."""
    calls = [
        f"where({step.condition!r})"
        if isinstance(step, Filter)
        else f"select({', '.join(map(repr, step.columns))})"
        for step in steps
    ]
    return ".".join(calls)


# Spark's and Polars' functions of many rows.  Those of an array (array_max, aggregate, ...) are not
# among them: an array is one value of one row.
_AGGREGATE = re.compile(
    r"""
    any | any_value | approx_count_distinct | approx_percentile | array_agg | avg | bit_(and|or|xor)
    | bitmap_\w+_agg | bool_(and|or) | collect_(list|set) | corr | count | count_if
    | count_min_sketch | covar(_pop|_samp)? | every | first | first_value | grouping(_id)?
    | histogram_numeric | hll_\w+_agg | kurtosis | last | last_value | listagg | (max|min)(_by)?
    | mean | median | mode | percentile(_approx|_cont|_disc)? | quantile_(cont|disc) | regr_\w+
    | skewness | some | (std|stddev|stdev|var|variance)(_pop|_samp)? | string_agg | (try_)?(avg|sum)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WINDOW_FUNCTION = re.compile(
    r"cume_dist|(dense_|percent_)?rank|lag|lead|nth_value|ntile|row_number", re.IGNORECASE
)
_GENERATOR = re.compile(
    r"(variant_|pos)?explode(_outer)?|inline(_outer)?|json_tuple|stack", re.IGNORECASE
)

# Behind a column called ``select``; a query has what it selects there.
_BEHIND_A_NAME = re.compile(r"|[=<>!),%/|]|and|as|between|i?like|in|is|or", re.IGNORECASE)


def check_row_wise(owner: str, sql: str) -> None:
    """Check that *sql* reads no other row than the one that it is computed for.

    Raises:
        ConfigurationError: *sql* has an aggregate, a window function or a query in it, or is empty.
    """
    if not any(tokens(sql)):
        raise ConfigurationError(
            f"{owner} has {sql!r}, which computes nothing; name a column, or write SQL"
        )
    across = across_rows(sql)
    if across is not None:
        raise ConfigurationError(
            f"{owner} has {across} in {sql!r}, which sees one row at a time; use "
            "key_by().aggregate(), window() or top_n() for what is of many"
        )


def check_one_value(owner: str, sql: str) -> None:
    """Check that *sql* reads no other row than the one that it is computed for, and has one value
    for it: a key, a condition or an argument of an aggregate.

    Raises:
        ConfigurationError: it has none, or more, or reads another row.
    """
    check_row_wise(owner, sql)
    calls = (part.function for part in parsed(sql).parts if isinstance(part, Call))
    if (made := next(filter(_GENERATOR.fullmatch, calls), None)) is not None:
        raise ConfigurationError(
            f"{owner} has {made}() in {sql!r}, which makes many rows of one, for all that its "
            "stage computes; make them in a select() before, and use their column"
        )


def across_rows(sql: str) -> str | None:
    """The part of *sql* that reads other rows than its own, in words; None if there is none."""
    read = parsed(sql)
    calls = [part.function for part in read.parts if isinstance(part, Call)]
    what = next(filter(None, map(_across_rows, calls)), None)
    if what is not None or read.tree is not None:
        return what
    if "over" in calls:
        return "a window function"
    queries = (
        following.text
        for token, following in pairwise((*tokens(sql), NO_TOKEN))
        if token.kind == "word" and token.text.lower() == "select"
    )
    is_query = any(_BEHIND_A_NAME.fullmatch(behind) is None for behind in queries)
    return "a query" if is_query else None


def _across_rows(function: str) -> str | None:
    if _AGGREGATE.fullmatch(function):
        return f"the aggregate {function}()"
    if _WINDOW_FUNCTION.fullmatch(function):
        return f"the window function {function}()"
    return None


def result_name(column: str) -> str | None:
    """The name of a selected column: behind AS, or the last part of a path; None if it has none."""
    return parsed(column).name


def origin_of(column: str, steps: Sequence[Step]) -> str | None:
    """The column that *column* behind *steps* is as it was before them; None if it is computed."""
    name = column
    for step in reversed(steps):
        items = list(map(parsed, step.columns)) if isinstance(step, Projection) else []
        own = [item for item in items if item.name is not None and _same(item.name, name)]
        if own and not own[-1].is_column:
            return None
        if own:
            name = own[-1].paths[0].parts[0]
        elif items and not any(item.is_star for item in items):
            return None
    return name


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _is_called(text: str, column: str) -> bool:
    name = result_name(text)
    return name is not None and _same(name, column)


def keeps(step: Projection, column: str) -> bool:
    """Whether the projection's result has *column*, as it was or computed anew."""
    return any(parsed(text).is_star or _is_called(text, column) for text in step.columns)


def columns_read(
    steps: Sequence[Step], names: Sequence[str], wanted: Sequence[str] | None = None
) -> list[str] | None:
    """The columns among *names* that have to be read for *steps*; None is all of them.

    These are the names in the steps up to the first projection without a star, and perhaps more.
    *wanted* are the columns that are read behind the steps; None is all.
    """
    texts: list[str] = []
    for step in steps:
        if isinstance(step, Filter):
            texts.append(step.condition)
            continue
        texts += step.columns
        if not any(map(_has_star, step.columns)):
            break
    else:
        if wanted is None:
            return None
        texts += wanted
    text = "\n".join(texts).lower()
    # A name that SQL can spell in more than one way is kept without a search.
    return [name for name in names if name.lower() in text or not name.isascii() or "`" in name]


def words_read(steps: Sequence[Step]) -> set[str] | None:
    """The words of *steps* up to what they select, in small letters; None if they select all."""
    texts: list[str] = []
    for step in steps:
        if isinstance(step, Filter):
            texts.append(step.condition)
            continue
        if any(map(_has_star, step.columns)):
            return None
        words = (token for text in (*texts, *step.columns) for token in tokens(text))
        return {word.text.strip('`"').lower() for word in words if word.kind in {"word", "quoted"}}
    return None


def _has_star(column: str) -> bool:
    """Whether *column* has a star that means every column, not one between two operands."""
    return any(
        star.text == "*" and before.text in {"", "(", ",", "."}
        for before, star in pairwise((NO_TOKEN, *tokens(column)))
    )


def computing(steps: tuple[Step, ...], column: str) -> tuple[Step, ...]:
    """The part of *steps* that computes *column*, for each row, and nothing else.

    Filters are left out, so that rows that they drop have the column, too.  Only the filters before
    a projection whose expression may fail for a row stay: they may be there to keep such rows away.
    Milliseconds that are no instant are null: reading the row itself fails.
    """
    for index in reversed(range(len(steps))):
        step = steps[index]
        if isinstance(step, Filter):
            continue
        item = next((text for text in step.columns if _is_called(text, column)), None)
        if item is None:
            continue  # It came with the star, or is not there at all.
        sql = parsed(item)
        match sql.tree:  # A column, or milliseconds as an instant: neither ever fails.
            case Column(parts=(base, *_)):
                before = computing(steps[:index], base)
                is_as_it_was = sql.is_column and sql.name == base
                return before if is_as_it_was else (*before, Projection((item,)))
            case Call(function="timestamp_millis", arguments=(Column(parts=(base, *_)) as at,)):
                millis, name = spelled(at), spelled(Column((column,)))
                is_instant = f"{millis} BETWEEN -{MAX_MILLIS} AND {MAX_MILLIS}"
                item = f"timestamp_millis(CASE WHEN {is_instant} THEN {millis} END) AS {name}"
                return (*computing(steps[:index], base), Projection((item,)))
            case _:
                return (*steps[:index], Projection((item,)))
    return ()


def unknown_column(sql: str, names: Collection[str]) -> str | None:
    """A column that *sql* reads and that is none of *names* in any case; None if that is not sure.

    It is not in SQL that only Spark can read.
    """
    known = _lowered(tuple(names))
    others = (path.parts[0] for path in parsed(sql).paths if path.parts[0].lower() not in known)
    return next((text for text in others if not WORD_VALUES.fullmatch(text)), None)


@lru_cache(maxsize=64)  # The columns of one stream, which every expression over it is checked by.
def _lowered(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
