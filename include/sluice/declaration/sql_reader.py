"""Reads SQL of one row into the tree of ``sluice.declaration.sql_tree``; sqlglot has the structure.

Each of sqlglot's nodes and arguments is taken over by name, and what is left over makes the text
unread.  Types, functions and the value of a literal are ours: of a function sqlglot knows the name
alone.

Where sqlglot binds operators in another order than Spark's grammar (``a || b + c``, ``a = b < c``),
a text is unread, too: parentheses make it one that both read alike.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token as SqlglotToken
from sqlglot.tokenizer_core import TokenType

from sluice.declaration.column_types import ColumnType, type_named
from sluice.declaration.sql_tree import (
    LITERAL,
    NO_TOKEN,
    NULL,
    TAKES_A_UNIT,
    Call,
    Case,
    Cast,
    Column,
    Expression,
    Literal,
    Star,
    columns_in,
    of_the_clock,
    tokens,
)

_SIGNS = ("-", "+", "~", "!")
# One function of several names -> the name that the tree has.
_SYNONYMS: Mapping[str, str] = {
    "ceiling": "ceil", "char_length": "length", "character_length": "length", "len": "length",
    "date_diff": "datediff", "dateadd": "date_add", "day": "dayofmonth", "ifnull": "coalesce",
    "lcase": "lower", "mod": "%", "negative": "negate", "nvl": "coalesce", "position": "locate",
    "pow": "power", "signum": "sign", "substr": "substring", "ucase": "upper",
}  # fmt: skip
_CASTS = (
    *("bigint", "binary", "boolean", "date", "decimal", "double", "float", "int", "smallint"),
    *("string", "timestamp", "tinyint"),
)  # Functions that cast to the type of their name.

_NUMBER = re.compile(
    r"(?=\.?\d)(?P<whole>\d+)?(?P<part>\.\d*)?(?P<power>e[+-]?\d+)?(?P<suffix>bd|[dflsy])?",
    re.IGNORECASE,
)
_INTEGERS = {"y": "tinyint", "s": "smallint", "l": "bigint"}
_MOST_FLOAT = (2 - 2**-23) * 2.0**127
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-1][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
# What Spark replaces by a setting of the session before it reads a text, in literals, too.
_VARIABLE = re.compile(r"\$\{\S+?\}")
# How tightly an operator binds, in Spark's grammar.
_OR, _AND, _NOT, _PREDICATE, _COMPARISON, _SUM, _PRODUCT, _SIGN, _PRIMARY = range(1, 10)


class UnreadError(Exception):
    """A piece of SQL that the tree has no node for."""


def read_sql(text: str) -> tuple[Expression, str | None]:
    """The tree of *text*, and its name behind AS.

    Raises:
        UnreadError: it has something that the tree has no node for.
    """
    variable = _VARIABLE.search(text)
    if variable is not None:
        raise UnreadError(variable[0])
    name, body = _name_of(_structure(text))
    return _read(body), name


# --- The structure, by sqlglot


def _as_written(*, is_string: bool) -> Callable[[Parser, SqlglotToken], exp.Expr]:
    def literal(parser: Parser, token: SqlglotToken) -> exp.Expr:
        return exp.Literal(this=parser.sql[token.start : token.end + 1], is_string=is_string)

    return literal


class _Tokenizer(Spark.Tokenizer):
    COMMANDS: ClassVar[set[TokenType]] = set()
    NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}


class _Parser(SparkParser):
    """Spark's parser without what sqlglot makes of functions and literals."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
    }
    PRIMARY_PARSERS: ClassVar[dict[Any, Any]] = {
        **SparkParser.PRIMARY_PARSERS,
        TokenType.STRING: _as_written(is_string=True),
        TokenType.NUMBER: _as_written(is_string=False),
    }

    def items(self, found: list[SqlglotToken], text: str) -> list[exp.Expr | None]:
        """Expressions that may have names: what stands in a SELECT."""
        expression = type(self)._parse_expression  # noqa: SLF001 - of this class
        return list(self._parse(expression, found, text))

    def _parse_as_command(self, start: SqlglotToken) -> Any:  # noqa: ANN401 - as sqlglot has it
        raise UnreadError(start.text)

    def _parse_types(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        name = self._curr
        found = super()._parse_types(*args, **options)
        if isinstance(found, exp.DataType):  # To sqlglot a type has names that Spark does not know.
            found.meta["name"] = name.text
            found.meta["is_before_a_text"] = (
                self._curr is not None and self._curr.token_type == TokenType.STRING
            )
        return found


class _Structure(Spark):
    Tokenizer = _Tokenizer
    Parser = _Parser


def _items(text: str, names: Collection[int]) -> list[exp.Expr | None]:
    """The structure of *text*, in which the words that begin at *names* are names."""
    dialect = _Structure()
    try:
        found = _joined(dialect.tokenize(text), TokenType.STRING)
        for token in found:
            if token.start in names:
                token.token_type = TokenType.IDENTIFIER
        if any(token.token_type == TokenType.SEMICOLON for token in found):
            raise UnreadError
        return _Parser(dialect=dialect, error_level=ErrorLevel.RAISE).items(found, text)
    except (SqlglotError, ArithmeticError) as error:
        raise UnreadError from error


def _structure(text: str) -> exp.Expr:
    """The structure of *text*; a word of SQL is a name where it is none of its grammar."""
    names = _names(text)
    # All words that may be names are; or one is, as in CASE WHEN case IS NULL THEN 1 END.
    for chosen in (names, *([name] for name in names), []):
        try:
            found = _items(text, chosen)
        except UnreadError:
            continue
        if len(found) == 1 and found[0] is not None:
            return found[0]
    raise UnreadError


def _joined(found: list[SqlglotToken], kind: TokenType) -> list[SqlglotToken]:
    """*found*, in which literals of a text that stand one behind the other are one token."""
    joined: list[SqlglotToken] = []
    for token in found:
        if joined and joined[-1].token_type == kind == token.token_type:
            joined[-1].end = token.end
        else:
            joined.append(token)
    return joined


def _names(text: str) -> list[int]:
    """The beginnings of words where a name may stand; Spark's keywords are names, too.

    A sign behind INTERVAL or NOT is that of a number.
    """
    found = [*tokens(text), NO_TOKEN]
    behind = {before.start: after for before, after in pairwise(found)}
    values = [
        word.start
        for word in columns_in(text)
        if not LITERAL.fullmatch(word.text)
        and not (word.text.lower() in {"interval", "not"} and behind[word.start].text in _SIGNS)
    ]
    return values + [
        token.start
        for before, token in pairwise(found)
        if token.kind == "word" and before.text.lower() in {".", "as"}
    ]


# --- The tree, of what sqlglot found


def _name_of(found: exp.Expr) -> tuple[str | None, exp.Expr]:
    if type(found) is not exp.Alias:
        return None, found
    body, alias = _taken(found, "this", "alias")
    return _identifier(alias), body


def _taken(node: exp.Expr, *names: str) -> list[Any]:
    """The arguments *names* of *node*, which has no others."""
    # What begins with an underscore is sqlglot's own knowledge, and nothing that was written.
    others = [value for name, value in node.args.items() if name not in names and name[0] != "_"]
    if any(value not in (None, False, []) for value in others):
        raise UnreadError(_text_of(node))
    return [node.args.get(name) for name in names]


def _text_of(node: exp.Expr) -> str:
    """*node* as SQL, to be shown."""
    shown = node.copy()
    for part in shown.find_all(exp.Identifier):
        part.set("quoted", re.fullmatch(r"[A-Za-z_]\w*", part.name) is None)
    for text in shown.find_all(exp.Literal):
        if text.args.get("is_string") and text.name[:1] in {"'", '"'}:
            text.set("this", _unescaped(text.name))
    return str(shown.sql(dialect="spark", normalize_functions=False))


def _identifier(node: object) -> str:
    if not isinstance(node, exp.Identifier):
        raise UnreadError
    return str(node.this)


def _read(node: exp.Expr) -> Expression:
    reader = _readers().get(type(node))
    if reader is None:
        raise UnreadError(_text_of(node))
    return reader(node)


@cache
def _readers() -> dict[type, Callable[[exp.Expr], Expression]]:
    def binary(sign: str, binds: int) -> Callable[[exp.Expr], Expression]:
        def read(node: exp.Expr) -> Expression:
            if isinstance(node, exp.DPipe):  # What it says of nulls is not Spark's.
                node.set("safe", None)
            left, right = _taken(node, "this", "expression")
            # Operators of one strength bind from the left; AND and OR may be taken either way.
            behind = binds if sign in {"and", "or"} else binds + 1
            return Call(sign, (_operand(left, binds), _operand(right, behind)))

        return read

    def unary(sign: str, binds: int) -> Callable[[exp.Expr], Expression]:
        def read(node: exp.Expr) -> Expression:
            (value,) = _taken(node, "this")
            return Call(sign, (_operand(value, binds),))

        return read

    def negated(sign: str) -> Callable[[exp.Expr], Expression]:
        return lambda node: Call("not", (binary(sign, _COMPARISON)(node),))

    return {
        exp.Column: _read_column,
        exp.Dot: _read_column,
        exp.Star: lambda node: (_taken(node), Star())[1],
        exp.Paren: lambda node: _read(*_taken(node, "this")),
        exp.Literal: _read_literal,
        exp.Boolean: lambda node: Literal(bool(node.this), ColumnType("boolean")),
        exp.Null: lambda _: NULL,
        exp.RawString: lambda node: Literal(str(node.this), ColumnType("string")),
        exp.Or: binary("or", _OR),
        exp.And: binary("and", _AND),
        exp.Not: unary("not", _NOT),
        exp.EQ: binary("=", _COMPARISON),
        exp.NEQ: negated("="),
        exp.LT: binary("<", _COMPARISON),
        exp.LTE: binary("<=", _COMPARISON),
        exp.GT: binary(">", _COMPARISON),
        exp.GTE: binary(">=", _COMPARISON),
        exp.NullSafeEQ: binary("<=>", _COMPARISON),
        exp.NullSafeNEQ: negated("<=>"),
        exp.Add: binary("+", _SUM),
        exp.Sub: binary("-", _SUM),
        exp.DPipe: binary("concat", _SUM),
        exp.Mul: binary("*", _PRODUCT),
        exp.Div: _read_quotient,
        exp.IntDiv: binary("div", _PRODUCT),
        exp.Mod: binary("%", _PRODUCT),
        exp.Neg: _read_negative,
        exp.Is: _read_is,
        exp.In: _read_in,
        exp.Between: _read_between,
        exp.Like: _read_like,
        exp.ILike: _read_like,
        exp.RegexpLike: _read_like,
        exp.Escape: _read_escape,
        exp.Case: _read_case,
        exp.If: _read_if,
        exp.Cast: _read_cast,
        exp.TryCast: _read_cast,
        exp.Extract: _read_extract,
        exp.Interval: _read_interval,
        exp.Bracket: _read_subscript,
        exp.Anonymous: _read_call,
    }


def _operand(node: exp.Expr, binds: int) -> Expression:
    """An operand that, without parentheses, binds as tightly as *binds* at least."""
    if _binds(node) < binds:
        raise UnreadError(_text_of(node))
    return _read(node)


def _binds(node: exp.Expr) -> int:
    match node:
        case exp.Or():
            return _OR
        case exp.And():
            return _AND
        case exp.Not():
            return _NOT
        case exp.NullSafeEQ() | exp.NullSafeNEQ():
            return _PREDICATE  # It may have been IS DISTINCT FROM.
        case exp.Is() | exp.In() | exp.Between() | exp.Like() | exp.ILike() | exp.RegexpLike():
            return _PREDICATE
        case exp.Escape():
            return _PREDICATE
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            return _COMPARISON
        case exp.Add() | exp.Sub() | exp.DPipe():
            return _SUM
        case exp.Mul() | exp.Div() | exp.IntDiv() | exp.Mod():
            return _PRODUCT
        case exp.Neg():
            return _SIGN
        case _:
            return _PRIMARY


def _read_column(node: exp.Expr) -> Expression:
    if isinstance(node, exp.Dot):
        before, last = _taken(node, "this", "expression")
        value = _operand(before, _PRIMARY)
        name = _identifier(last)
        if isinstance(value, Column):
            return Column((*value.parts, name))
        return Call("field", (value, Literal(name, ColumnType("string"))))
    this, *around = _taken(node, "this", "table", "db", "catalog")
    names = [part for part in reversed(around) if part is not None]
    if isinstance(this, exp.Star):
        if names:
            raise UnreadError(_text_of(node))
        return Star()
    name = _identifier(this)
    if not names and not this.args.get("quoted") and _NUMBER.fullmatch(name):
        return _known_number(name)
    return Column((*map(_identifier, names), name))


def _read_literal(node: exp.Expr) -> Expression:
    written = str(node.this)
    if node.args.get("is_string"):
        return Literal(_unescaped(written), ColumnType("string"))
    return _known_number(written)


def _known_number(written: str, sign: int = 1) -> Literal:
    number = _number(written, sign)
    if number is None:
        raise UnreadError(written)
    return number


def _number(written: str, sign: int = 1) -> Literal | None:
    """A number as Spark reads it: 1 is an int, 1.5 a decimal, 1e0 a double, 1L a bigint."""
    found = _NUMBER.fullmatch(written)
    if found is None or not (found["whole"] or (found["part"] or "")[1:]):
        return None
    suffix = (found["suffix"] or "").lower()
    if suffix in {"d", "f"} or (found["power"] and not suffix):
        number = sign * float(written[: len(written) - len(suffix)])
        if abs(number) > (_MOST_FLOAT if suffix == "f" else sys.float_info.max):
            return None
        return Literal(number, ColumnType("float" if suffix == "f" else "double"))
    if suffix in _INTEGERS and (found["part"] or found["power"]):
        return None
    if suffix in _INTEGERS or (not suffix and not found["part"]):
        value = sign * int(found["whole"])
        fitting = [of for of, bits in _BITS.items() if -(2**bits) <= 2 * value < 2**bits]
        of = _INTEGERS.get(suffix)
        if of is not None:
            return Literal(value, ColumnType(of)) if of in fitting else None
        if fitting:
            return Literal(value, ColumnType("bigint" if fitting == ["bigint"] else "int"))
    value_of = sign * Decimal(written[: len(written) - len(suffix)])
    _, digits, exponent = value_of.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale)
    if precision > 38:
        return None
    exact = value_of.quantize(Decimal(1).scaleb(-scale)) if exponent > 0 else value_of
    return Literal(exact, ColumnType("decimal", (precision, scale)))


def _read_negative(node: exp.Expr) -> Expression:
    (value,) = _taken(node, "this")
    # Spark's numbers have their sign: -2147483648 is an int, although 2147483648 is none.
    if isinstance(value, exp.Literal) and not value.args.get("is_string"):
        return _known_number(str(value.this), -1)
    if isinstance(value, exp.Column) and _NUMBER.fullmatch(value.name):
        return _known_number(value.name, -1)
    return Call("negate", (_operand(value, _SIGN),))


def _unescaped(written: str) -> str:
    """The text of literals as they are written, by Spark's rules (unescapeSQLString).

    Of 'a' 'b' it is ab; without a blank between them, as in 'it\'\'s', there is a quote between.
    """
    text, end = "", -1
    for found in _TEXT.finditer(written):
        text += found[0][0] if found.start() == end else ""
        text += _ESCAPE.sub(_unescaped_sign, found[0][1:-1])
        end = found.end()
    return text


def _unescaped_sign(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) > 1:
        code = int(escaped, 8) if escaped[0].isdigit() else int(escaped[1:], 16)
        if code > sys.maxunicode:
            raise UnreadError(found[0])
        return chr(code)
    # For LIKE, its wildcards keep the backslash.
    return f"\\{escaped}" if escaped in "%_" else _ESCAPED.get(escaped, escaped)


def _read_is(node: exp.Expr) -> Expression:
    value, what = _taken(node, "this", "expression")
    read = _operand(value, _COMPARISON)
    if isinstance(what, exp.Null):
        return Call("is_null", (read,))
    if isinstance(what, exp.Boolean):
        return Call("<=>", (read, Literal(bool(what.this), ColumnType("boolean"))))
    raise UnreadError(_text_of(node))


def _read_in(node: exp.Expr) -> Expression:
    (value,) = _taken_but(node, "this", "expressions")
    return Call("in", (_operand(value, _COMPARISON), *map(_read, node.expressions)))


def _taken_but(node: exp.Expr, name: str, listed: str) -> list[Any]:
    """The argument *name* of *node*, which has no other one but those *listed*."""
    return _taken(node, name, listed)[:1]


def _read_between(node: exp.Expr) -> Expression:
    value, low, high = _taken(node, "this", "low", "high")
    return Call("between", tuple(_operand(part, _COMPARISON) for part in (value, low, high)))


_LIKE: Mapping[type[exp.Expr], str] = {
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.RegexpLike: "rlike",
}


def _read_like(node: exp.Expr) -> Expression:
    value, pattern, negated = _taken(node, "this", "expression", "negate")
    name = _LIKE[type(node)]
    found = Call(name, (_operand(value, _COMPARISON), _operand(pattern, _COMPARISON)))
    return Call("not", (found,)) if negated else found


def _read_escape(node: exp.Expr) -> Expression:
    like, sign = _taken(node, "this", "expression")
    if not isinstance(sign, exp.Literal) or len(str(sign.this)) != 1:
        raise UnreadError(_text_of(node))
    found, escape = _read(like), Literal(str(sign.this), ColumnType("string"))
    match found:
        case Call(function="not", arguments=(Call(function=name, arguments=arguments),)):
            return Call("not", (Call(name, (*arguments, escape)),))
        case Call(function="like" | "ilike" as name, arguments=arguments):
            return Call(name, (*arguments, escape))
        case _:
            raise UnreadError(_text_of(node))


def _read_quotient(node: exp.Expr) -> Expression:
    left, right, *_ = _taken(node, "this", "expression", "typed", "safe")
    return Call("/", (_operand(left, _PRODUCT), _operand(right, _PRODUCT + 1)))


def _read_case(node: exp.Expr) -> Expression:
    subject, _, default = _taken(node, "this", "ifs", "default")
    branches: list[tuple[Expression, Expression]] = []
    for branch in node.args["ifs"]:
        condition, value = _taken(branch, "this", "true")
        read = _read(condition)
        if subject is not None:
            read = Call("=", (_read(subject), read))
        branches.append((read, _read(value)))
    return Case(tuple(branches), NULL if default is None else _read(default))


def _read_if(node: exp.Expr) -> Expression:
    condition, value, otherwise = _taken(node, "this", "true", "false")
    if otherwise is None:
        raise UnreadError(_text_of(node))
    return Case(((_read(condition), _read(value)),), _read(otherwise))


def _read_cast(node: exp.Expr) -> Expression:
    value, to, is_try = _taken(node, "this", "to", "safe")
    if isinstance(to, exp.DataType) and to.meta.get("is_before_a_text"):
        clock = of_the_clock(str(to.meta["name"]), _unescaped(str(value.this)))
        if clock is not None:
            return clock
    return Cast(_read(value), _type(to), is_try=bool(is_try))


def _type(to: exp.Expr) -> ColumnType:
    if not isinstance(to, exp.DataType) or "name" not in to.meta:
        raise UnreadError(_text_of(to))
    arguments: list[int] = []
    for part in to.expressions:
        this = part.this if isinstance(part, exp.DataTypeParam) else None
        if not isinstance(this, exp.Literal) or not str(this.this).isdecimal():
            raise UnreadError(_text_of(to))
        arguments.append(int(str(this.this)))
    found = type_named(str(to.meta["name"]), tuple(arguments))
    if found is None:
        raise UnreadError(str(to.meta["name"]))
    return found


def _read_extract(node: exp.Expr) -> Expression:
    unit, value = _taken(node, "this", "expression")
    return Call("extract", (Literal(unit.name.lower(), ColumnType("string")), _read(value)))


def _read_interval(node: exp.Expr) -> Expression:
    value, unit = _taken(node, "this", "unit")
    if not isinstance(value, exp.Literal) or not isinstance(unit, exp.Var):
        raise UnreadError(_text_of(node))
    number = str(value.this).strip("'\"")
    of = unit.name.lower().removesuffix("s")
    if re.fullmatch(r"-?\d+", number) is None:
        raise UnreadError(_text_of(node))
    return Literal(int(number), ColumnType(f"interval {of}"))


def _read_subscript(node: exp.Expr) -> Expression:
    (value,) = _taken_but(node, "this", "expressions")
    if len(node.expressions) != 1:
        raise UnreadError(_text_of(node))
    return Call("[]", (_operand(value, _PRIMARY), _read(node.expressions[0])))


def _taken_apart(node: exp.Expr) -> list[exp.Expr]:
    """The text that is sought, and the one it is sought in: position('a' IN text)."""
    if not isinstance(node, exp.In):
        raise UnreadError(_text_of(node))
    part, listed, field = _taken(node, "this", "expressions", "field")
    among = [*(listed or []), *([] if field is None else [field])]
    if len(among) != 1:
        raise UnreadError(_text_of(node))
    return [part, *among]


def _read_call(node: exp.Expr) -> Expression:
    _taken(node, "this", "expressions")
    name = str(node.name).lower()
    given = list(node.expressions)
    if TAKES_A_UNIT.fullmatch(name) and len(given) == 3:
        unit = _read(given[0])
        if not isinstance(unit, Column):
            raise UnreadError(_text_of(node))
        first = Literal(unit.parts[0].lower(), ColumnType("string"))
        return Call(name, (first, *map(_read, given[1:])))
    if name == "position" and len(given) == 1:
        given = _taken_apart(given[0])
    arguments = tuple(map(_read, given))
    if name in _CASTS and len(arguments) == 1:
        to = type_named(name, ())
        assert to is not None
        return Cast(arguments[0], to)
    return Call(_SYNONYMS.get(name, name), arguments)
