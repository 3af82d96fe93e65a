"""Filters, projections and schemas that are written as texts of SQL, read without Spark.

A step is a filter or a projection of single rows, where a stage reads a source or behind its
result; steps apply in the order in which they are written.  A step sees one row: aggregates and
window functions in it are refused, as their results would depend on where the barriers and the
subtasks are.  ``columns_read`` and ``computing`` reduce the steps to what a reader needs.

A word of SQL is a column where a value is expected, with an operator, a comma or an end behind it.
That tells the column ``end`` from the END of a CASE, and ``day`` from the unit in ``INTERVAL 1
day``.

A schema in Spark's DDL, ``"name string, tags array<string>"``, is read with all of Spark's types,
so that a mistake is found when a pipeline is declared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, pairwise
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


def written(steps: Sequence[Step]) -> str:
    """*steps* as they are declared: ``where('a > 1').select('a', 'b')``."""
    calls = [
        f"where({step.condition!r})"
        if isinstance(step, Filter)
        else f"select({', '.join(map(repr, step.columns))})"
        for step in steps
    ]
    return ".".join(calls)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type by Spark's ``name``; ``fields`` of a struct, or the inner types of an array or map."""

    name: str
    arguments: tuple[int, ...] = ()
    fields: tuple[tuple[str, ColumnType], ...] = ()


class Token(NamedTuple):
    kind: str  # "word", "number", "text", "quoted" or "sign".
    text: str
    start: int


NO_TOKEN = Token("", "", 0)

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

# Behind a column called ``select``; a query has what it selects there.
_BEHIND_A_NAME = re.compile(r"|[=<>!),%/|]|and|as|between|i?like|in|is|or", re.IGNORECASE)

# Expressions that never fail: a column, a field, milliseconds as an instant.
_PLAIN = re.compile(
    r"(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)(?:\s+AS\s+(?P<name>[A-Za-z_]\w*))?", re.IGNORECASE
)
_MILLIS = re.compile(
    r"timestamp_millis\(\s*(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)\s*\)\s+AS\s+\w+", re.IGNORECASE
)

# Words before a value, and words behind one.
_BEFORE = re.compile(
    r"and|between|case|div|else|escape|from|i?like|in|not|or|regexp|rlike|then|when", re.IGNORECASE
)
_BEHIND = re.compile(
    r"and|as|asc|between|collate|desc|div|else|end|escape|i?like|in|is|not|or|regexp|rlike|then"
    r"|when",
    re.IGNORECASE,
)
_TAKES_A_UNIT = re.compile(r"date_?(add|diff)|timediff|timestamp(add|diff)", re.IGNORECASE)
_QUOTED_AT_THE_END = re.compile(r"`((?:[^`]|``)+)`\s*$")
# Values, unless there is a column of that name.
_VALUE = re.compile(
    r"current_(catalog|database|date|schema|time|timestamp|user)|false|localtime(stamp)?|null"
    r"|session_user|true|user",
    re.IGNORECASE,
)
# Always values, even beside columns of these names.
LITERAL = re.compile(r"false|null|true", re.IGNORECASE)

# A type's name -> its canonical name.
_TYPES = {
    **{name: name for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float")},
    **{name: name for name in ("double", "date", "time", "timestamp", "timestamp_ntz", "string")},
    **{name: name for name in ("char", "varchar", "binary", "decimal", "void", "interval")},
    **{name: name for name in ("variant", "geography", "geometry", "array", "map", "struct")},
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "timestamp_ltz": "timestamp", "character": "char", "dec": "decimal", "numeric": "decimal",
}  # fmt: skip
_DDL_TOKEN = re.compile(
    r"\s*(?:(?P<name>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'[^']*')|(?P<sign>.))"
)


def check_row_wise(owner: str, sql: str) -> None:
    """Check that *sql* reads no other row than the one that is filtered or projected.

    Raises:
        ConfigurationError: *sql* has an aggregate, a window function or a query in it.
    """
    across = across_rows(sql)
    if across is not None:
        raise ConfigurationError(
            f"{owner} has {across} in {sql!r}; where() and select() see one row at a time: use "
            "key_by().aggregate(), window() or top_n() for what is of many"
        )


def across_rows(sql: str) -> str | None:
    """The part of *sql* that reads other rows than its own, in words; None if there is none."""
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
    quoted = _QUOTED_AT_THE_END.search(column)
    if quoted:
        return quoted[1].replace("``", "`")
    return re.split(r"[\s.]+", column.strip())[-1].strip('`"')


def keeps(step: Projection, column: str) -> bool:
    """Whether the projection's result has *column*, as it was or computed anew."""
    return any(text.strip() == "*" or result_name(text) == column for text in step.columns)


def columns_read(
    steps: Sequence[Step], names: Sequence[str], wanted: Sequence[str] | None = None
) -> list[str] | None:
    """Which of *names* have to be read for *steps*; None is all of them.

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
    """
    for index in reversed(range(len(steps))):
        step = steps[index]
        if isinstance(step, Filter):
            continue
        item = next((text for text in step.columns if result_name(text) == column), None)
        if item is None:
            continue  # It came with the star, or is not there at all.
        found = _PLAIN.fullmatch(item.strip()) or _MILLIS.fullmatch(item.strip())
        if found is None:
            return (*steps[:index], Projection((item,)))
        base = found["path"].partition(".")[0]
        before = computing(steps[:index], base)
        return before if item.strip() == base else (*before, Projection((item,)))
    return ()


def columns_in(sql: str) -> Iterator[Token]:
    """The words of *sql* where a column is expected; of ``bid.price`` the first."""
    words = [NO_TOKEN, NO_TOKEN, *tokens(sql), NO_TOKEN]
    for place, token in enumerate(islice(words, 2, len(words) - 1), start=2):
        two_before, before, behind = words[place - 2], words[place - 1], words[place + 1]
        if token.kind == "word" and _begins(two_before, before) and _ends(behind):
            yield token


def unknown_column(sql: str, names: Collection[str]) -> str | None:
    """A column that *sql* reads and that is none of *names* in any case; None if that is not sure.

    It is not in SQL with lambdas (``x -> x + 1``) or named arguments, which define names.
    """
    if "->" in sql or "=>" in sql:
        return None
    known = _lowered(tuple(names))
    others = (word.text for word in columns_in(sql) if word.text.lower() not in known)
    keywords = (_VALUE, _BEFORE, _BEHIND)
    return next((text for text in others if not any(k.fullmatch(text) for k in keywords)), None)


@lru_cache(maxsize=64)  # The columns of one stream, which every expression over it is checked by.
def _lowered(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def row_schema(owner: str, text: str) -> dict[str, ColumnType]:
    """The columns of *text* by name.

    Raises:
        ConfigurationError: *text* is no schema; the message begins with *owner* and says where.
    """
    return dict(_Reader(owner, text).fields(end=""))


def tokens(sql: str) -> Iterator[Token]:
    """The words and signs of *sql*; neither blanks nor comments."""
    for found in _TOKEN.finditer(sql):
        if found.lastgroup is not None:
            yield Token(found.lastgroup, found.group(), found.start())


def _begins(two_before: Token, before: Token) -> bool:
    match before.kind:
        case "":
            return True
        case "sign":
            takes_a_unit = (
                before.text == "(" and _TAKES_A_UNIT.fullmatch(two_before.text) is not None
            )
            return before.text not in {")", "]", ".", ":"} and not takes_a_unit
        case "word":
            return _BEFORE.fullmatch(before.text) is not None
        case _:
            return False


def _ends(behind: Token) -> bool:
    match behind.kind:
        case "":
            return True
        case "sign":
            return behind.text != "("
        case "word":
            return _BEHIND.fullmatch(behind.text) is not None
        case _:
            return False


class _Reader:
    def __init__(self, owner: str, text: str) -> None:
        self._what = f"{owner} has the schema {text!r}"
        self._tokens = [found for found in _DDL_TOKEN.finditer(text) if found.group().strip()]
        self._at = 0

    def fields(self, end: str) -> Iterator[tuple[str, ColumnType]]:
        names: set[str] = set()
        while True:
            name = self._name("a column's name")
            if name.lower() in names:
                raise self._wrong(f"names the column {name!r} twice")
            names.add(name.lower())
            self._skip(":")
            yield name, self._type(name)
            if not self._skip(","):
                self._expect(end)
                return

    def _type(self, column: str) -> ColumnType:
        text = self._name(f"a type of {column!r}")
        name = _TYPES.get(text.lower())
        if name is None:
            close = get_close_matches(text.lower(), _TYPES, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise self._wrong(
                f"gives {column!r} the type {text!r}, which Spark does not have{hint}"
            )
        column_type = ColumnType(name, self._arguments(), self._inside(name, column))
        self._skip_remarks(name)
        return column_type

    def _arguments(self) -> tuple[int, ...]:
        if not self._skip("("):
            return ()
        numbers = [self._number()]
        while self._skip(","):
            numbers.append(self._number())
        self._expect(")")
        return tuple(numbers)

    def _inside(self, name: str, column: str) -> tuple[tuple[str, ColumnType], ...]:
        if name not in {"array", "map", "struct"}:
            return ()
        self._expect("<")
        if name == "struct":
            return () if self._skip(">") else tuple(self.fields(end=">"))
        fields = [("", self._type(column))]
        if name == "map":
            self._expect(",")
            fields.append(("", self._type(column)))
        self._expect(">")
        return tuple(fields)

    def _skip_remarks(self, name: str) -> None:
        """Skip NOT NULL, COMMENT 'text', COLLATE name, and the units of INTERVAL DAY TO SECOND."""
        while self._word() in {"not", "null", "comment", "collate", "default"} or (
            name == "interval" and self._word()
        ):
            is_named = self._word() in {"comment", "collate", "default"}
            self._at += 2 if is_named else 1

    def _word(self) -> str:
        return (self._tokens[self._at]["name"] or "").lower() if self._has_more else ""

    @property
    def _has_more(self) -> bool:
        return self._at < len(self._tokens)

    def _name(self, what: str) -> str:
        token = self._tokens[self._at] if self._has_more else None
        name = None if token is None else token["name"] or token["quoted"]
        if name is None:
            raise self._wrong(f"lacks {what}{self._before(token)}")
        self._at += 1
        return name.replace("``", "`")

    def _number(self) -> int:
        text = self._name("a number")
        if not text.isdecimal():
            raise self._wrong(f"has {text!r} where a number belongs")
        return int(text)

    def _skip(self, sign: str) -> bool:
        found = self._has_more and self._tokens[self._at]["sign"] == sign
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if sign and not self._skip(sign):
            token = self._tokens[self._at] if self._has_more else None
            raise self._wrong(f"lacks {sign!r}{self._before(token)}")
        if not sign and self._has_more:
            raise self._wrong(f"lacks a comma{self._before(self._tokens[self._at])}")

    def _before(self, token: re.Match[str] | None) -> str:
        return " at its end" if token is None else f" before {token.group().strip()!r}"

    def _wrong(self, how: str) -> ConfigurationError:
        return ConfigurationError(f"{self._what}, which {how}; write it as 'name string, n bigint'")
