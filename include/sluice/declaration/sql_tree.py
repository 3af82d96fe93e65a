"""The tree of an expression of SQL: what it means, without its spelling; and the words of a text.

``canonical`` is a text of the tree that stays the same when only the spelling changes, and from
one version of any library to another: fingerprints are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    """A constant of Spark's ``type``; ``void`` is that of NULL.

    A day or an instant that Spark reads off the clock is its word: ``TIMESTAMP 'now'``.
    """

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
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "=", "<=>": "<=>"}


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


def replaced(tree: Expression, by: Callable[[Column], Expression]) -> Expression:
    """*tree* with what *by* has for each of its columns; of a field, for the column that has it."""
    match tree:
        case Column(parts=(_,)):
            return by(tree)
        case Column(parts=(name, *path)):
            whole = by(Column((name,)))
            if isinstance(whole, Column):
                return Column((*whole.parts, *path))
            fields = (Literal(part, ColumnType("string")) for part in path)
            return Call("field", (whole, *fields))
        case Call(arguments=arguments):
            return replace(tree, arguments=tuple(replaced(one, by) for one in arguments))
        case Cast(value=value):
            return replace(tree, value=replaced(value, by))
        case Case(branches=branches, otherwise=otherwise):
            kept = tuple((replaced(when, by), replaced(then, by)) for when, then in branches)
            return Case(kept, replaced(otherwise, by))
        case _:
            return tree


_INFIX = (
    *("+", "-", "*", "/", "%", "=", "<", "<=", ">", ">=", "<=>", "and", "or", "div"),
    *("like", "ilike", "rlike"),
)
# A number of another type than its digits alone would have.
_SUFFIXES = {"tinyint": "Y", "smallint": "S", "bigint": "L", "float": "F", "double": "D"}


def canonical(tree: Expression) -> str:
    """*tree* as one text, in which no two meanings are equal: ``(a IS NULL) AND (b > 3)``.

    Names are in small letters, words of SQL in capitals; operands whose order has no meaning are
    sorted, constants behind what they are compared with.
    """
    match tree:
        case Column(parts=parts):
            return spelled(Column(tuple(part.lower() for part in parts)))
        case Call(function=sign, arguments=(left, right)) if sign in _MIRRORED:
            one, other = _operand(left, canonical), _operand(right, canonical)
            return min(
                (isinstance(left, Literal), f"{one} {sign} {other}"),
                (isinstance(right, Literal), f"{other} {_MIRRORED[sign]} {one}"),
            )[1]
        case _:
            return _written(tree, canonical)


def spelled(tree: Expression) -> str:
    """*tree* as SQL, to be shown: with more parentheses than are needed."""
    return _written(tree, spelled)


def _written(tree: Expression, write: Callable[[Expression], str]) -> str:
    """*tree* as SQL, of whose parts *write* makes texts."""
    match tree:
        case Column(parts=parts):
            return ".".join(map(_name, parts))
        case Literal():
            return _written_literal(tree)
        case Call(function="and" | "or" as function):
            operands = [_operand(one, write) for one in _flat(function, tree.arguments)]
            return f" {function.upper()} ".join(
                sorted(operands) if write is canonical else operands
            )
        case Call():
            return _written_call(tree, write)
        case Cast(value=value, type=of, is_try=is_try):
            return f"{'TRY_' if is_try else ''}CAST({write(value)} AS {of})"
        case Case(branches=branches, otherwise=otherwise):
            whens = [f"WHEN {write(when)} THEN {write(then)}" for when, then in branches]
            return f"CASE {' '.join(whens)} ELSE {write(otherwise)} END"
        case Star():
            return "*"


def _written_literal(literal: Literal) -> str:
    value, of = literal.value, literal.type
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.hex()
        quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return quoted if of.name == "string" else f"{of.name.upper()} {quoted}"
    kind, _, unit = of.name.partition(" ")
    if kind == "interval":
        return f"INTERVAL {value} {unit.upper()}"
    is_whole = of.name == "decimal" and "." not in str(value)
    return f"{value}{'BD' if is_whole else _SUFFIXES.get(of.name, '')}"


def _written_call(tree: Call, write: Callable[[Expression], str]) -> str:
    is_canonical = write is canonical
    match tree.function, tree.arguments:
        case sign, (left, right) if sign in _INFIX:
            return f"{_operand(left, write)} {sign.upper()} {_operand(right, write)}"
        case "negate", (value,):
            return f"-{_operand(value, write)}"
        case "[]", (value, place):
            return f"{_operand(value, write)}[{write(place)}]"
        case "field", (value, *names) if not is_canonical:
            path = [_name(str(one.value)) for one in names if isinstance(one, Literal)]
            return ".".join([_operand(value, write), *path])
        case "not", (value,):
            return f"NOT {_operand(value, write)}"
        case "is_null", (value,):
            return f"{_operand(value, write)} IS NULL"
        case "between", (value, low, high):
            bounds = f"{_operand(low, write)} AND {_operand(high, write)}"
            return f"{_operand(value, write)} BETWEEN {bounds}"
        case "in", (value, *listed):
            among = [*map(write, listed)]
            among = sorted({*among}) if is_canonical else among
            return f"{_operand(value, write)} IN ({', '.join(among)})"
        case function, arguments:
            return f"{function}({', '.join(map(write, arguments))})"


def _operand(tree: Expression, write: Callable[[Expression], str]) -> str:
    text = write(tree)
    is_simple = isinstance(tree, Column | Literal | Cast | Case | Star) or (
        isinstance(tree, Call)
        and (tree.function == "[]" or (text[-1:] == ")" and text.startswith(f"{tree.function}(")))
    )
    return text if is_simple else f"({text})"


def _flat(function: str, arguments: tuple[Expression, ...]) -> Iterator[Expression]:
    for one in arguments:
        if isinstance(one, Call) and one.function == function:
            yield from _flat(function, one.arguments)
        else:
            yield one


def _name(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_]\w*", name) is not None
    return name if is_plain else "`" + name.replace("`", "``") + "`"


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


_TYPED = re.compile(r"date|timestamp(_ltz|_ntz)?", re.IGNORECASE)
_OF_THE_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\s*", re.IGNORECASE)


def of_the_clock(of: str, text: str) -> Literal | None:
    """``DATE 'today'`` and its like, *text* behind the name of the type; None for other texts."""
    if _TYPED.fullmatch(of) is None or not names_the_clock(text):
        return None
    return Literal(text.strip().lower(), ColumnType(of.lower()))


def names_the_clock(text: str) -> bool:
    """Whether Spark reads a constant *text* off the clock where it is made a day or an instant."""
    return _OF_THE_CLOCK.fullmatch(text) is not None


def parts_of_words(sql: str) -> Iterator[Expression]:
    """The parts that the words of *sql* tell, where it is no tree: calls, columns, clocks.

    A call has a star for its arguments, or none.
    """
    words = [*tokens(sql), NO_TOKEN, NO_TOKEN]
    for token, following, second in zip(words, words[1:], words[2:], strict=False):
        if token.kind in {"word", "quoted"} and following.text == "(":
            name = token.text.strip("`").lower()
            yield Call(name, () if second.text == ")" else (Star(),))
        clock = of_the_clock(token.text, following.text[1:-1]) if following.kind == "text" else None
        if clock is not None:
            yield clock
    for column in columns_in(sql):
        yield Column((column.text,))


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
