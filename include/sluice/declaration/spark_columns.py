"""Columns of Spark Connect as SQL text: ``F.col("price") > 100`` is ``"(`price` > 100)"``.

    from pyspark.sql.connect import functions as F

Such a column is an expression in Python, which needs no session, so it can stand in a declaration
that Airflow parses.  It becomes text where it is given, and from there on is what that text is:
there is one dialect (``sluice.declaration.sql``).  A column of ``pyspark.sql.functions`` without
Connect exists in the JVM of a running Spark alone.

The node classes are those of ``pyspark.sql.connect.expressions``, by their names: PySpark is not
imported here.  What is not listed (user-defined functions, windows, subqueries) has no text.
"""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from typing import Any, Protocol, runtime_checkable

from sluice.errors import ConfigurationError


@runtime_checkable
class SparkColumn(Protocol):
    """The part of ``pyspark.sql.Column`` that is used; anything else that is given is a mistake."""

    def alias(self, *alias: str, **kwargs: Any) -> Any: ...  # noqa: ANN401 - a column

    def isNotNull(self) -> Any: ...  # noqa: ANN401, N802 - Spark's name


_CONNECT = "pyspark.sql.connect.expressions"
_WORD = re.compile(r"[A-Za-z_]\w*")
_EPOCH = date(1970, 1, 1)
_OPERATORS = {
    "==": "=",
    **{
        sign: sign for sign in ("<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "%", "&", "|", "^")
    },
    **{word: word.upper() for word in ("and", "or", "like", "ilike", "rlike")},
}
_SUFFIXES = {"ByteType": "Y", "ShortType": "S", "IntegerType": "", "LongType": "L"}
_PRECISE = {"FloatType": "F", "DoubleType": "D", "DecimalType": "BD"}


class _NoTextError(Exception):
    """A piece of a column that SQL text cannot say."""


def sql_text(expression: str | SparkColumn) -> str:
    """*expression* as SQL text; a name of a column stays one.

    Raises:
        ConfigurationError: it is a column that no text says; the message names the piece.
    """
    if isinstance(expression, str):
        return expression
    node = getattr(expression, "_expr", None)
    if not _is_node(node):
        raise ConfigurationError(
            "a column of pyspark.sql.functions exists in a running Spark alone; import the "
            "functions from pyspark.sql.connect, or write the expression as SQL text"
        )
    try:
        return _item(node)
    except _NoTextError as error:
        raise ConfigurationError(
            f"{expression!r} has {error}, which is not SQL of one row; write what is meant as SQL "
            "text, or use transform()"
        ) from None


def _is_node(node: object) -> bool:
    return any(base.__module__ == _CONNECT for base in type(node).__mro__)


def _item(node: Any) -> str:  # noqa: ANN401 - a node of Spark's, here and below
    """The text of a whole expression, which may be a name, a star or have an alias."""
    match type(node).__name__:
        case "ColumnReference":
            parts = _parts(node)
            return ".".join(part if _WORD.fullmatch(part) else _quoted(part) for part in parts)
        case "UnresolvedStar":
            return node._unparsed_target or "*"  # noqa: SLF001 - nodes have no public fields
        case "SQLExpression":
            return str(node._expr)  # noqa: SLF001
        case "ColumnAlias" if len(node._alias) == 1:  # noqa: SLF001
            return f"{_text(node._child)} AS {_quoted(node._alias[0])}"  # noqa: SLF001
        case _:
            return _text(node)


def _text(node: Any) -> str:  # noqa: ANN401
    """The text of an expression inside of another: with parentheses around each operator."""
    match type(node).__name__:
        case "ColumnReference":
            return ".".join(map(_quoted, _parts(node)))
        case "LiteralExpression":
            return _literal(node._value, node._dataType)  # noqa: SLF001
        case "SQLExpression":
            return f"({node._expr})"  # noqa: SLF001
        case "UnresolvedFunction" | "CallFunction":
            if getattr(node, "_is_distinct", False):
                raise _NoTextError(f"{node!r}")
            return _call(node._name, [_text(argument) for argument in node._args])  # noqa: SLF001
        case "CaseWhen":
            whens = [f"WHEN {_text(of)} THEN {_text(value)}" for of, value in node._branches]  # noqa: SLF001
            otherwise = node._else_value  # noqa: SLF001
            default = [] if otherwise is None else [f"ELSE {_text(otherwise)}"]
            return " ".join(["CASE", *whens, *default, "END"])
        case "CastExpression" if node._eval_mode in {None, "ansi", "try"}:  # noqa: SLF001
            to = node._data_type  # noqa: SLF001
            name = to if isinstance(to, str) else to.simpleString()
            cast = "TRY_CAST" if node._eval_mode == "try" else "CAST"  # noqa: SLF001
            return f"{cast}({_text(node._expr)} AS {name})"  # noqa: SLF001
        case "UnresolvedExtractValue":
            return _extracted(node._child, node._extraction)  # noqa: SLF001
        case _:
            raise _NoTextError(f"{node!r}")


def _parts(node: Any) -> list[str]:  # noqa: ANN401
    """The name of a column and of the fields in it, which dots and backquotes are about."""
    name = node._unparsed_identifier  # noqa: SLF001
    if node._plan_id is not None or node._is_metadata_column:  # noqa: SLF001
        raise _NoTextError(f"column {name!r} of a DataFrame")
    found = re.findall(r"`((?:[^`]|``)*)`|([^`.]+)", name)
    parts = [quoted.replace("``", "`") or plain for quoted, plain in found]
    return [*filter(None, parts)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _call(name: str, arguments: list[str]) -> str:
    match name, arguments:
        case _, [left, right] if name in _OPERATORS:
            return f"({left} {_OPERATORS[name]} {right})"
        case "not", [value]:
            return f"(NOT {value})"
        case "negative", [value]:
            return f"(- {value})"
        case "isNull", [value]:
            return f"({value} IS NULL)"
        case "isNotNull", [value]:
            return f"({value} IS NOT NULL)"
        case "in", [value, *members] if members:
            return f"({value} IN ({', '.join(members)}))"
        case _ if _WORD.fullmatch(name):
            return f"{name.lower()}({', '.join(arguments)})"
        case _:
            raise _NoTextError(f"{name}({', '.join(arguments)})")


def _extracted(child: Any, extraction: Any) -> str:  # noqa: ANN401
    """A field of a struct; an element of an array or a map is Spark's ``[...]``."""
    value = getattr(extraction, "_value", None)
    if isinstance(value, str) and type(child).__name__ in {
        "ColumnReference",
        "UnresolvedExtractValue",
    }:
        return f"{_text(child)}.{_quoted(value)}"
    return f"{_text(child)}[{_text(extraction)}]"


def _literal(value: Any, of: object) -> str:  # noqa: ANN401 - as Spark keeps it
    kind = type(of).__name__
    if value is None:
        return "NULL"
    match kind:
        case "BooleanType":
            return "TRUE" if value else "FALSE"
        case "StringType":
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case "BinaryType":
            return f"X'{bytes(value).hex()}'"
        case "DateType":
            return f"DATE '{_EPOCH + timedelta(days=value)}'"
        case "TimestampType":
            return f"timestamp_micros({value}L)"
        case "FloatType" | "DoubleType" if not math.isfinite(value):
            return f"CAST('{value}' AS {'FLOAT' if kind == 'FloatType' else 'DOUBLE'})"
        case "DecimalType":
            return f"{value:f}BD"
        case _ if kind in _PRECISE:
            return f"{value!r}{_PRECISE[kind]}"
        case _ if kind in _SUFFIXES:
            return f"{value}{_SUFFIXES[kind]}"
        case _:
            raise _NoTextError(f"the literal {value!r} of type {kind}")
