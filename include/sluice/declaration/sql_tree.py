"""The tree of an expression of SQL: what it means, without its spelling; and the words of a text.

``canonical`` is a text of the tree that stays the same when only the spelling changes, and from
one version of any library to another: fingerprints are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import NamedTuple, TypeAlias

from sluice.declaration.column_types import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or with further ``parts`` a field of one; as it is spelt."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Star:
    """Every column: an item of a SELECT, or the argument of ``count(*)``."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of Spark's ``type``; ``void`` is that of NULL."""

    value: bool | int | float | Decimal | str | bytes | None
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Call:
    """A ``function`` in small letters, or an operator under its sign (``and``, ``<=``, ``in``)."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    value: Expression
    type: ColumnType
    is_try: bool = False  # What cannot be cast is null.


@dataclass(frozen=True, slots=True)
class Case:
    """The value behind the first condition that is true; ``otherwise`` is NULL if not given."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


Expression: TypeAlias = Column | Star | Literal | Call | Cast | Case

VOID = ColumnType("void")
NULL = Literal(None, VOID)

TAKES_A_UNIT = re.compile(r"date_?(add|diff)|timediff|timestamp(add|diff)", re.IGNORECASE)
_FREE_OF_ORDER = ("and", "or", "=", "<=>")
_MIRRORED = {">": "<", ">=": "<="}


def parts_of(tree: Expression) -> Iterator[Expression]:
    """*tree* and everything in it, from its root."""
    yield tree
    for inner in _inside(tree):
        yield from parts_of(inner)


def _inside(tree: Expression) -> tuple[Expression, ...]:
    match tree:
        case Call(arguments=arguments):
            return arguments
        case Cast(value=value):
            return (value,)
        case Case(branches=branches, otherwise=otherwise):
            return (*(part for branch in branches for part in branch), otherwise)
        case _:
            return ()


def canonical(tree: Expression) -> str:
    """*tree* as one text, in which no two meanings are equal: ``(and (< a 3:int) (is_null b))``.

    Names are in small letters, quoted where they are no word; operands whose order has no meaning
    are sorted.
    """
    match tree:
        case Column(parts=parts):
            return ".".join(_canonical_name(part) for part in parts)
        case Star():
            return "*"
        case Literal(value=value, type=of):
            text = repr(value) if isinstance(value, bool | str | bytes | float) else str(value)
            return f"{text}:{of}"
        case Call(function=function, arguments=arguments):
            if function in _MIRRORED:
                function, arguments = _MIRRORED[function], tuple(reversed(arguments))
            inner = [canonical(one) for one in _flat(function, arguments)]
            if function in _FREE_OF_ORDER:
                inner.sort()
            elif function == "in":
                inner = [inner[0], *sorted(set(inner[1:]))]
            return f"({' '.join([_canonical_name(function, is_function=True), *inner])})"
        case Cast(value=value, type=of, is_try=is_try):
            return f"({'try_cast' if is_try else 'cast'} {canonical(value)} {of})"
        case Case():
            return f"(case {' '.join(canonical(part) for part in _inside(tree))})"


def _canonical_name(name: str, *, is_function: bool = False, keeps_case: bool = False) -> str:
    is_plain = is_function or re.fullmatch(r"[A-Za-z_]\w*", name) is not None
    shown = name if keeps_case else name.lower()
    return shown if is_plain else "`" + shown.replace("`", "``") + "`"


def _flat(function: str, arguments: tuple[Expression, ...]) -> Iterator[Expression]:
    for one in arguments:
        if function in {"and", "or"} and isinstance(one, Call) and one.function == function:
            yield from _flat(function, one.arguments)
        else:
            yield one


_INFIX = (
    *("+", "-", "*", "/", "%", "=", "<", "<=", ">", ">=", "<=>", "and", "or", "div"),
    *("like", "ilike", "rlike"),
)


def written(tree: Expression) -> str:
    """*tree* as SQL, to be shown: with more parentheses than are needed."""
    match tree:
        case Column(parts=parts):
            return ".".join(_canonical_name(part, keeps_case=True) for part in parts)
        case Literal(value=str() as text):
            return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case Literal(value=value):
            return "NULL" if value is None else str(value)
        case Call():
            return _written_call(tree)
        case Cast(value=value, type=of, is_try=is_try):
            return f"{'TRY_' if is_try else ''}CAST({written(value)} AS {of})"
        case Case(branches=branches, otherwise=otherwise):
            whens = [f"WHEN {written(when)} THEN {written(then)}" for when, then in branches]
            return f"CASE {' '.join(whens)} ELSE {written(otherwise)} END"
        case Star():
            return "*"


def _written_call(tree: Call) -> str:
    match tree.function, tree.arguments:
        case sign, (left, right) if sign in _INFIX:
            return f"{_operand(left)} {sign.upper()} {_operand(right)}"
        case "negate", (value,):
            return f"-{_operand(value)}"
        case "not", (value,):
            return f"NOT {_operand(value)}"
        case "is_null", (value,):
            return f"{_operand(value)} IS NULL"
        case "between", (value, low, high):
            return f"{_operand(value)} BETWEEN {_operand(low)} AND {_operand(high)}"
        case "in", (value, *listed):
            return f"{_operand(value)} IN ({', '.join(map(written, listed))})"
        case function, arguments:
            return f"{function}({', '.join(map(written, arguments))})"


def _operand(tree: Expression) -> str:
    text = written(tree)
    is_simple = isinstance(tree, Column | Literal | Cast | Case) or (
        isinstance(tree, Call) and text.endswith(")") and text.startswith(f"{tree.function}(")
    )
    return text if is_simple else f"({text})"


class Token(NamedTuple):
    kind: str  # "word", "number", "text", "quoted" or "sign".
    text: str
    start: int


NO_TOKEN = Token("", "", 0)

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/          # Nothing.
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
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
# Values, unless there is a column of that name.
WORD_VALUES = re.compile(
    r"current_(catalog|database|date|schema|time|timestamp|user)|localtime(stamp)?|session_user"
    r"|user",
    re.IGNORECASE,
)
# Always values, even beside columns of these names.
LITERAL = re.compile(r"false|null|true", re.IGNORECASE)


def tokens(sql: str) -> Iterator[Token]:
    """The words and signs of *sql*; neither blanks nor comments."""
    for found in _TOKEN.finditer(sql):
        if found.lastgroup is not None:
            yield Token(found.lastgroup, found.group(), found.start())


def columns_in(sql: str) -> Iterator[Token]:
    """The words of *sql* where a column is expected; of ``bid.price`` the first."""
    words = [NO_TOKEN, NO_TOKEN, *tokens(sql), NO_TOKEN]
    for place, token in enumerate(islice(words, 2, len(words) - 1), start=2):
        two_before, before, behind = words[place - 2], words[place - 1], words[place + 1]
        if token.kind == "word" and _begins(two_before, before) and _ends(behind):
            yield token


def _begins(two_before: Token, before: Token) -> bool:
    match before.kind:
        case "":
            return True
        case "sign":
            takes_a_unit = (
                before.text == "(" and TAKES_A_UNIT.fullmatch(two_before.text) is not None
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
