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
from sluice.declaration.sql_regexes import SEARCHING, RegexError, searched
from sluice.declaration.sql_tree import Call, Cast, Expression, Literal, parts_of, spelled

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
    "array": ("array<string>", "array<int>"),
    "texts": ("array<string>",),
    "integers": ("array<int>",),
    "structs": ("array<struct<f:int,g:string>>",),
    "map of texts": ("map<string,int>",),
    "map of integers": ("map<int,string>", "map<bigint,double>"),
    "no text": (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(12,2)"),
        *("date", "timestamp"),
    ),
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
# A text is read as what is beside it.
_DAYS = ("'2024-02-29'", "'1969-12-31 23:59'", "' 2021-1-2 '", "'2021'")
_READ_BESIDE = (
    _of("text", "no text"), _of("no text", "text"), Signature(("day", "text"), literals={1: _DAYS}),
)  # fmt: skip
_COMPARED = (*_FLOATS_BESIDE, Signature(("any", "any"), same=True), _of("decimal", "decimal"),
             _of("decimal", "integer"), _of("integer", "decimal"), _of("day", "day"),
             *_READ_BESIDE)  # fmt: skip
_UNITS = ("'year'", "'quarter'", "'month'", "'week'", "'day'", "'hour'", "'minute'", "'second'")
_PARTS = ("'year'", "'quarter'", "'month'", "'week'", "'day'", "'dow'", "'doy'")
_PATTERNS = ("'%b%'", "'a_'", "'A%'", "''", "'%'", "'\\\\%'", "'ä'", "'.*'")

_REGEXES = ("'b'", "'^[^a-z]+$'", "'(?i)a|(ä)'", "'^.$'", "'[\\\\w.-]{2,3}'", "'\\\\s+x?'")
_FOUND = ("'([a-z])(.)?'", "'(?i)(A|B)([0-9]*)'", "'( +)(a)?'")
_SEPARATORS = ("' '", "'a'", "'[ab]'", "'b|B+'", "'%'")
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
    "between": (
        Signature(("any", "any", "any"), same=True),
        Signature(("day", "text", "text"), literals={1: _DAYS[1:2], 2: _DAYS[:1]}),
    ),
    "in": (
        Signature(("integer", "any", "any"), literals={1: ("1", "-1", "NULL"), 2: ("2147483648",)}),
        Signature(("text", "any", "any"), literals={1: ("'a'", "NULL"), 2: ("' ab '",)}),
        Signature(("double", "any", "any"), literals={1: ("1.5e0", "1"), 2: ("0", "NULL")}),
        Signature(("any", "any", "any"), same=True),
        _of("decimal", "integer"),
        _of("day", "day"),
        *_READ_BESIDE,
        Signature(("day", "text", "day"), literals={1: _DAYS}),
    ),
    "like": (Signature(("text", "text"), literals={1: _PATTERNS}),),
    "ilike": (Signature(("text", "text"), literals={1: _PATTERNS}),),
    "rlike": (Signature(("text", "text"), literals={1: _REGEXES}),),
    "coalesce": (
        Signature(("any", "any", "any"), same=True),
        *_FLOATS_BESIDE,
        _of("decimal", "integer"),
        _of("decimal", "decimal"),
        *_READ_BESIDE,
    ),
    "nullif": (Signature(("any", "any"), same=True), _of("decimal", "integer"), *_FLOATS_BESIDE,
               *_READ_BESIDE),
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
    "power": (
        Signature(("number", "number"), literals={1: ("2", "0.5", "1", "0", "-1", "2.0", "1e0")}),
    ),
    "upper": (_of("text"),),
    "lower": (_of("text"),),
    "length": (_of("text"),),
    "trim": (_of("text"),),
    "ltrim": (_of("text"),),
    "rtrim": (_of("text"),),
    "concat": (_of("text", "text"), _of("text", "integer"), _of("text", "boolean")),
    "concat_ws": (Signature(("text", "text", "text"), literals={0: ("','", "''")}),),
    "lpad": (
        Signature(("text", "integer"), literals={1: ("3", "0", "-1")}),
        Signature(("text", "integer", "text"), literals={1: ("1", "4"), 2: ("'0'", "'xä'", "''")}),
    ),
    "rpad": (
        Signature(("text", "integer"), literals={1: ("3", "0", "-1")}),
        Signature(("text", "integer", "text"), literals={1: ("1", "4"), 2: ("'0'", "'xä'", "''")}),
    ),
    "instr": (_of("text", "text"),),
    "locate": (_of("text", "text"), _of("text", "text", "small integer")),
    "regexp_extract": (
        Signature(("text", "text"), literals={1: _FOUND}),
        Signature(("text", "text", "integer"), literals={1: _FOUND, 2: ("0", "1", "2")}),
    ),
    "regexp_replace": (
        Signature(("text", "text", "text"), literals={1: _FOUND, 2: ("''", "'<$1>$2'", "'$0x'")}),
    ),
    "split": (Signature(("text", "text"), literals={1: _SEPARATORS}),),
    "substring_index": (
        Signature(
            ("text", "text", "integer"),
            literals={1: ("' '", "'a'", "''", "'aB'"), 2: ("1", "2", "0", "-1", "-2")},
        ),
    ),
    "split_part": (
        Signature(
            ("text", "text", "integer"), literals={1: ("' '", "'a'", "''"), 2: ("1", "2", "-1")}
        ),
    ),
    "size": (_of("array"),),
    "field": (Signature(("structs", "text"), literals={1: ("'f'", "'G'")}),),
    "[]": (
        _of("array", "small integer"),
        _of("structs", "small integer"),
        _of("map of texts", "text"),
        _of("map of integers", "small integer"),
    ),
    "get": (_of("array", "small integer"),),
    "element_at": (
        _of("array", "small integer"),
        _of("map of texts", "text"),
        _of("map of integers", "small integer"),
    ),
    "array_contains": (_of("texts", "text"), _of("integers", "small integer")),
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
    "date_trunc": (Signature(("text", "day"), literals={0: _UNITS}),),
    "trunc": (Signature(("date", "text"), literals={1: _UNITS[:4]}),),
    "last_day": (_of("date"),),
    "date_add": (_of("date", "small integer"),),
    "date_sub": (_of("date", "small integer"),),
    "datediff": (_of("date", "date"),),
    "date_format": (Signature(("day", "text"), literals={1: _WRITTEN}),),
    "to_date": (_of("day"), _of("text"), Signature(("text", "text"), literals={1: _READ})),
    "to_timestamp": (_of("day"), _of("text"), Signature(("text", "text"), literals={1: _READ})),
    "try_to_timestamp": (_of("text"),),
    "from_unixtime": (_of("integer"), Signature(("integer", "text"), literals={1: _WRITTEN})),
    "unix_timestamp": (_of("day"), _of("text"), Signature(("text", "text"), literals={1: _READ})),
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
    **dict.fromkeys(("float", "double"), (*_NUMBERS, "boolean", "string")),
    **dict.fromkeys(KINDS["integer"], (*_NUMBERS, "decimal", "boolean", "string")),
    "decimal": (*_NUMBERS, "decimal", "boolean", "string"),
    "boolean": ("boolean", *_NUMBERS, "string"),
    "string": ("string", *_NUMBERS, "decimal", "boolean", "date", "timestamp"),
    "date": ("date", "timestamp", "string"),
    "timestamp": ("timestamp", "date", "bigint", "string"),
}


# As many arguments as one likes, and at least so many.
_MORE = {"coalesce": 1, "concat": 1, "concat_ws": 2, "greatest": 2, "in": 2, "least": 2}
_OPTIONAL = {"ilike": 3, "like": 3, "replace": 2}  # A number of arguments that no signature has.


def has_arity(call: Call) -> bool:
    """Whether *call* has as many arguments as its function takes."""
    given, least = len(call.arguments), _MORE.get(call.function)
    counts = {len(one.kinds) for one in FUNCTIONS[call.function]}
    is_listed = given in counts or given == _OPTIONAL.get(call.function)
    return is_listed if least is None else given >= least


@dataclass(frozen=True, slots=True)
class OnlySparks:
    """A *piece* of SQL that only Spark can compute, and what about it, if that is not its name."""

    piece: str
    why: str = ""


def only_sparks(sql: Sql) -> OnlySparks | None:
    """The part of *sql* that only Spark can compute, by its structure; None if there is none."""
    if sql.tree is None:
        return OnlySparks(sql.unread)
    refused = (one for one in map(_refused, parts_of(sql.tree)) if one is not None)
    return next(refused, None)


def _refused(part: Expression) -> OnlySparks | None:
    match part:
        case Literal(value=str(), type=of) if of.name != "string":
            return OnlySparks(spelled(part))
        case Call(function=function) if function not in FUNCTIONS:
            return OnlySparks(spelled(part))
        case Call(arguments=given) if not has_arity(part):
            return OnlySparks(spelled(part), f"with {len(given)} arguments")
        case Call(arguments=given) if not all(
            isinstance(given[place], Literal) for place in _literal_places(part)
        ):
            return OnlySparks(spelled(part), "with other than literals")
        case Call(function=function) if function in SEARCHING:
            try:
                searched(part)
            except RegexError as error:
                return OnlySparks(spelled(part), f"its pattern {error}")
        case Cast(value=value, type=to) if not isinstance(value, Literal):
            targets: Collection[str] = {of for targets in CASTS.values() for of in targets}
            return OnlySparks(spelled(part)) if to.name not in targets else None
    return None


def _literal_places(call: Call) -> Collection[int]:
    """The arguments of *call* that its function takes as literals alone."""
    given = len(call.arguments)
    listed = [
        {*(one.literals or ())} for one in FUNCTIONS[call.function] if len(one.kinds) == given
    ]
    return set.intersection(*listed) if listed else ()
