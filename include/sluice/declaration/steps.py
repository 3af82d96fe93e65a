"""Filters and projections of single rows, where a stage reads a source or behind its result.

A step is a filter or a projection; steps apply in the order in which they are written.  A step sees
one row, so aggregates and window functions in it are refused: what they give would depend on where
the barriers and the subtasks are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Filter:
    condition: str


@dataclass(frozen=True, slots=True)
class Projection:
    """``columns`` are names or SQL, with ``*`` for every column there is."""

    columns: tuple[str, ...]


Step: TypeAlias = Filter | Projection

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/          # Nothing.
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>"[^"]*"|`[^`]*`)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)

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


# Behind the column ``select``; a query goes on with what it selects.
_BEHIND_A_NAME = re.compile(r"|[=<>!),%/|]|and|as|between|i?like|in|is|or", re.IGNORECASE)


class Token(NamedTuple):
    kind: str  # "word", "number", "text", "quoted" or "sign".
    text: str
    start: int


NO_TOKEN = Token("", "", 0)


def tokens(sql: str) -> Iterator[Token]:
    """The words and signs of *sql*; neither blanks nor comments."""
    for found in _TOKEN.finditer(sql):
        if found.lastgroup is not None:
            yield Token(found.lastgroup, found.group(), found.start())


def check_row_wise(owner: str, sql: str) -> None:
    """Refuse what looks at other rows than the one that is filtered or projected.

    Raises:
        ConfigurationError: *sql* has an aggregate, a window function or a query in it.
    """
    what = across_rows(sql)
    if what is not None:
        raise ConfigurationError(
            f"{owner} has {what} in {sql!r}; where() and select() see one row at a time: use "
            "key_by().aggregate(), window() or top_n() for what is of many"
        )


def across_rows(sql: str) -> str | None:
    """What in *sql* looks at other rows than its own, in words; None if nothing does."""
    for token, following in pairwise((*tokens(sql), NO_TOKEN)):
        name = token.text.lower()
        is_call = following.text == "("
        if token.kind != "word":
            continue
        if is_call and _AGGREGATE.fullmatch(name):
            return f"the aggregate {token.text}()"
        if is_call and _WINDOW_FUNCTION.fullmatch(name):
            return f"the window function {token.text}()"
        if is_call and name == "over":
            return "a window function"
        if name == "select" and _BEHIND_A_NAME.fullmatch(following.text) is None:
            return "a query"
    return None


def result_name(column: str) -> str:
    """The name of a selected column: behind AS, or the last part of a path."""
    return re.split(r"[\s.]+", column.strip())[-1].strip('`"')


def keeps(step: Projection, column: str) -> bool:
    """Whether the projection's result has *column*, as it was or computed anew."""
    return any(text.strip() == "*" or result_name(text) == column for text in step.columns)


def columns_read(
    steps: Sequence[Step], names: Sequence[str], wanted: Sequence[str] | None = None
) -> list[str] | None:
    """Which of *names* have to be read for *steps*, or None for all of them: those that they name
    before and in the first projection without a star, and perhaps more.  *wanted* is what is
    looked at behind the steps; everything when None.
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
    # Names that SQL may spell in more than one way are taken to be named.
    return [name for name in names if name.lower() in text or not name.isascii() or "`" in name]


def _has_star(column: str) -> bool:
    """Whether every column is meant; the star between two operands is none of that kind."""
    return any(
        star.text == "*" and before.text in {"", "(", ",", "."}
        for before, star in pairwise((NO_TOKEN, *tokens(column)))
    )


# An expression that never fails: a column, a field, milliseconds as an instant.
_PLAIN = re.compile(
    r"(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)(?:\s+AS\s+(?P<name>[A-Za-z_]\w*))?", re.IGNORECASE
)
_MILLIS = re.compile(
    r"timestamp_millis\(\s*(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)\s*\)\s+AS\s+\w+", re.IGNORECASE
)


def computing(steps: tuple[Step, ...], column: str) -> tuple[Step, ...]:
    """What of *steps* has to be done to know *column* of each row, and no more.

    Filters are left out, so that the column is known of rows that are not kept, too.  Only those
    stay that stand before a projection which computes the column in a way that may fail for a row:
    they may be there to keep such rows away.
    """
    for place in reversed(range(len(steps))):
        step = steps[place]
        if isinstance(step, Filter):
            continue
        item = next((one for one in step.columns if result_name(one) == column), None)
        if item is None:
            continue  # It came with the star, or is not there at all.
        found = _PLAIN.fullmatch(item.strip()) or _MILLIS.fullmatch(item.strip())
        if found is None:
            return (*steps[:place], Projection((item,)))
        base = found["path"].partition(".")[0]
        before = computing(steps[:place], base)
        return before if item.strip() == base else (*before, Projection((item,)))
    return ()
