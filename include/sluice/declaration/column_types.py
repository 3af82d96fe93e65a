"""Types of columns, by the names that Spark gives them, and schemas in Spark's DDL.

A schema, ``"name string, tags array<string>"``, is read with all of Spark's types, so that a
mistake is found when a pipeline is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type by Spark's ``name``; ``fields`` of a struct, or the inner types of an array or map."""

    name: str
    arguments: tuple[int, ...] = ()
    fields: tuple[tuple[str, ColumnType], ...] = ()

    @property
    def has_map(self) -> bool:
        return self.name == "map" or any(of.has_map for _, of in self.fields)

    def __str__(self) -> str:
        """The text of a schema: ``decimal(10,2)``, ``array<string>``, ``struct<a:int>``."""
        arguments = f"({','.join(map(str, self.arguments))})" if self.arguments else ""
        inside = ",".join(f"{name}:{of}" if name else str(of) for name, of in self.fields)
        is_nested = self.name in {"array", "map", "struct"}
        return f"{self.name}{arguments}" + (f"<{inside}>" if is_nested else "")


# A type's name -> its canonical name.
_TYPES = {
    **{name: name for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float")},
    **{name: name for name in ("double", "date", "time", "timestamp", "timestamp_ntz", "string")},
    **{name: name for name in ("char", "varchar", "binary", "decimal", "void", "interval")},
    **{name: name for name in ("variant", "geography", "geometry", "array", "map", "struct")},
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "timestamp_ltz": "timestamp", "character": "char", "dec": "decimal", "numeric": "decimal",
}  # fmt: skip
MAX_DIGITS = 38
_ARGUMENTS = {  # What some types take, in words.
    "decimal": f"it takes at most {MAX_DIGITS} digits, and how many of them are decimals",
    **dict.fromkeys(("char", "varchar"), "it takes a length"),
}
_FREE = ("time", "timestamp", "timestamp_ntz", "geography", "geometry")  # Spark checks theirs.
_DDL_TOKEN = re.compile(
    r"\s*(?:(?P<name>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'[^']*')|(?P<sign>.))"
)


def _is_known(name: str, arguments: tuple[int, ...]) -> bool:
    """Whether Spark has a type *name* with these *arguments*."""
    match name, arguments:
        case "decimal", (digits, *rest) if rest:
            return digits <= MAX_DIGITS and len(rest) == 1 and rest[0] <= digits
        case "decimal", (digits,):
            return digits <= MAX_DIGITS
        case (("char" | "varchar"), _):
            return len(arguments) == 1
        case _:
            return not arguments or name in _FREE


def type_named(name: str, arguments: tuple[int, ...]) -> ColumnType | None:
    """The type of one value called *name*; None if Spark has none, or it needs more than that."""
    found = _TYPES.get(name.lower())
    if found is None or found in {"array", "interval", "map", "struct"}:
        return None
    return ColumnType(found, arguments)


def row_schema(owner: str, text: str) -> dict[str, ColumnType]:
    """The columns of *text* by name.

    Raises:
        ConfigurationError: *text* is no schema; the message begins with *owner* and says where.
    """
    return dict(_Reader(owner, text).fields(end=""))


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
        if not _is_known(name, column_type.arguments):
            raise self._wrong(
                f"gives {column!r} the type '{column_type}', which Spark does not have "
                f"({_ARGUMENTS.get(name, 'it takes no number')})"
            )
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
