"""The functions and operators of Spark SQL that are computed without Spark: the allow-list.

Each of them, with each of its signatures, has Spark's meaning under ANSI where Polars computes it
(``sluice.operators.sql``), of every value: ``tests/spark/test_sql.py`` generates its cases from
this list, and compares the two ways of a source.  Whatever is not on the list is Spark's alone: it
may stand in what is read of a source, and behind a stage it is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sluice.declaration.sql import Sql
from sluice.declaration.sql_tree import Call, Cast, Literal, parts_of, spelled

# Which types a parameter may have, in the words of the documentation.
Kind: TypeAlias = str
KINDS: Mapping[Kind, tuple[str, ...]] = {
    "integer": ("tinyint", "smallint", "int", "bigint"),
    "number": ("tinyint", "smallint", "int", "bigint", "float", "double"),
    "small integer": ("tinyint", "smallint", "int"),
    "decimal": ("decimal(12,2)", "decimal(5,0)", "decimal(18,6)"),
    "double": ("double", "float"),
    "text": ("string",),
    "boolean": ("boolean",),
    "date": ("date",),
    "timestamp": ("timestamp",),
    "day": ("date", "timestamp"),
    "any": (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(12,2)"),
        *("string", "date", "timestamp"),
    ),
}


@dataclass(frozen=True, slots=True)
class Signature:
    """The kinds of the parameters; with ``same`` they are of one type, or of numbers.

    ``literals`` are the parameters that have to be literals: place -> values that tests use.
    """

    kinds: tuple[Kind, ...]
    same: bool = False
    literals: Mapping[int, tuple[str, ...]] | None = None


def _of(*kinds: Kind) -> Signature:
    return Signature(kinds)


# A literal such as 1.5 is a decimal, and a double beside one.
_DECIMALS = ("1.5", "-0.1", "0.30")
_BESIDE = Signature(("double", "decimal"), literals={1: _DECIMALS})
_FLOATS_BESIDE = (_BESIDE, _of("double", "decimal"), _of("decimal", "double"))
_ARITHMETIC = (*_FLOATS_BESIDE, _of("number", "number"), _of("decimal", "decimal"),
               _of("decimal", "small integer"), _of("small integer", "decimal"))  # fmt: skip
_COMPARED = (*_FLOATS_BESIDE, Signature(("any", "any"), same=True), _of("decimal", "decimal"),
             _of("decimal", "integer"), _of("integer", "decimal"), _of("day", "day"))  # fmt: skip
_UNITS = ("'year'", "'quarter'", "'month'", "'week'", "'day'", "'hour'", "'minute'", "'second'")
_PARTS = ("'year'", "'quarter'", "'month'", "'week'", "'day'", "'dow'", "'doy'")
_PATTERNS = ("'%b%'", "'a_'", "'A%'", "''", "'%'", "'\\\\%'", "'ä'", "'.*'")

_DAYS_OF = ("INTERVAL 7 DAYS", "INTERVAL -1 DAY", "INTERVAL 1 MONTH", "INTERVAL 13 MONTHS",
            "INTERVAL 1 YEAR", "INTERVAL 2 WEEKS", "INTERVAL 90 MINUTES", "INTERVAL 36 HOURS",
            "INTERVAL 1 SECOND")  # fmt: skip
_MOVED = tuple(Signature((of, "integer"), literals={1: _DAYS_OF}) for of in ("date", "timestamp"))
_WRITTEN = ("'yyyy-MM-dd'", "'yyyyMMdd'", "'yyyy-MM'", "'HH:mm'", "'dd.MM.yyyy HH:mm:ss'",
            "'yyyy-MM-dd\\'T\\'HH:mm:ss.SSS'", "'EEE, dd MMM yyyy'", "'EEEE, MMMM'", "'yyyy%'",
            "'SSSSSS'")  # fmt: skip
_READ = ("'yyyy-MM-dd'", "'yyyyMMdd'", "'yyyy-MM'", "'dd.MM.yyyy HH:mm:ss'",
         "'yyyy-MM-dd\\'T\\'HH:mm:ss'", "'yyyy-MM-dd HH:mm'", "'yyyyMMddHH'")  # fmt: skip

FUNCTIONS: Mapping[str, tuple[Signature, ...]] = {
    "+": (*_ARITHMETIC, *_MOVED),
    "-": (*_ARITHMETIC, *_MOVED),
    "*": _ARITHMETIC,
    "/": _ARITHMETIC,
    "%": (_of("integer", "integer"),),
    "div": (_of("integer", "integer"),),
    "negate": (_of("number"), _of("decimal")),
    "=": _COMPARED,
    "<=>": _COMPARED,
    "<": _COMPARED,
    "<=": _COMPARED,
    ">": _COMPARED,
    ">=": _COMPARED,
    "and": (_of("boolean", "boolean"),),
    "or": (_of("boolean", "boolean"),),
    "not": (_of("boolean"),),
    "is_null": (_of("any"),),
    "isnull": (_of("any"),),
    "isnotnull": (_of("any"),),
    "isnan": (_of("double"),),
    "between": (Signature(("any", "any", "any"), same=True),),
    "in": (
        Signature(("integer", "any", "any"), literals={1: ("1", "-1", "NULL"), 2: ("2147483648",)}),
        Signature(("text", "any", "any"), literals={1: ("'a'", "NULL"), 2: ("' ab '",)}),
        Signature(("double", "any", "any"), literals={1: ("1.5e0", "1"), 2: ("0", "NULL")}),
    ),
    "like": (Signature(("text", "text"), literals={1: _PATTERNS}),),
    "coalesce": (
        Signature(("any", "any", "any"), same=True),
        *_FLOATS_BESIDE,
        _of("decimal", "integer"),
        _of("decimal", "decimal"),
    ),
    "nullif": (Signature(("any", "any"), same=True), _of("decimal", "integer"), *_FLOATS_BESIDE),
    "nvl2": (Signature(("any", "integer", "integer"),),),
    "greatest": (Signature(("any", "any", "any"), same=True), *_FLOATS_BESIDE),
    "least": (Signature(("any", "any", "any"), same=True), *_FLOATS_BESIDE),
    "abs": (_of("number"), _of("decimal")),
    "ceil": (_of("number"), _of("decimal")),
    "floor": (_of("number"), _of("decimal")),
    "round": (
        _of("integer"),
        _of("double"),
        Signature(("double", "integer"), literals={1: ("0", "1", "2", "15")}),
        _of("decimal"),
        Signature(("decimal", "integer"), literals={1: ("0", "1", "2", "15")}),
    ),
    "sqrt": (_of("number"),),
    "upper": (_of("text"),),
    "lower": (_of("text"),),
    "length": (_of("text"),),
    "trim": (_of("text"),),
    "ltrim": (_of("text"),),
    "rtrim": (_of("text"),),
    "concat": (_of("text", "text"), _of("text", "integer"), _of("text", "boolean")),
    "substring": (_of("text", "small integer"), _of("text", "small integer", "small integer")),
    "left": (_of("text", "small integer"),),
    "right": (_of("text", "small integer"),),
    "startswith": (_of("text", "text"),),
    "endswith": (_of("text", "text"),),
    "contains": (_of("text", "text"),),
    "replace": (Signature(("text", "text", "text"), literals={1: ("'a'", "' '"), 2: ("'x'",)}),),
    "date": (_of("day"),),
    "year": (_of("day"),),
    "quarter": (_of("day"),),
    "month": (_of("day"),),
    "weekofyear": (_of("day"),),
    "dayofmonth": (_of("day"),),
    "dayofweek": (_of("day"),),
    "dayofyear": (_of("day"),),
    "weekday": (_of("day"),),
    "hour": (_of("timestamp"),),
    "minute": (_of("timestamp"),),
    "second": (_of("timestamp"),),
    "extract": (Signature(("text", "day"), literals={0: _PARTS}),),
    "date_trunc": (Signature(("text", "timestamp"), literals={0: _UNITS}),),
    "date_add": (_of("date", "small integer"),),
    "date_sub": (_of("date", "small integer"),),
    "datediff": (_of("date", "date"),),
    "date_format": (Signature(("day", "text"), literals={1: _WRITTEN}),),
    "to_date": (_of("day"), _of("text"), Signature(("text", "text"), literals={1: _READ})),
    "to_timestamp": (_of("day"), _of("text"), Signature(("text", "text"), literals={1: _READ})),
    "try_to_timestamp": (_of("text"),),
    "unix_micros": (_of("timestamp"),),
    "unix_millis": (_of("timestamp"),),
    "unix_seconds": (_of("timestamp"),),
    "timestamp_micros": (_of("integer"),),
    "timestamp_millis": (_of("integer"),),
    "timestamp_seconds": (_of("integer"),),
}  # fmt: skip

# What is cast to what.
_NUMBERS = KINDS["number"]
CASTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("float", "double"), (*_NUMBERS, "boolean")),
    **dict.fromkeys(KINDS["integer"], (*_NUMBERS, "decimal", "boolean", "string")),
    "decimal": (*_NUMBERS, "decimal", "boolean", "string"),
    "boolean": ("boolean", *_NUMBERS, "string"),
    "string": ("string", *_NUMBERS, "decimal", "boolean", "date", "timestamp"),
    "date": ("date", "timestamp", "string"),
    "timestamp": ("timestamp", "date", "bigint", "string"),
}


def not_compiled(sql: Sql) -> str | None:
    """The piece of *sql* that only Spark can compute, by its structure; None if there is none."""
    if sql.tree is None:
        return sql.unread
    for part in parts_of(sql.tree):
        if isinstance(part, Call) and part.function not in FUNCTIONS:
            return spelled(part)
        if isinstance(part, Cast) and not isinstance(part.value, Literal):
            targets: Collection[str] = {of for targets in CASTS.values() for of in targets}
            if part.type.name not in targets:
                return spelled(part)
    return None
