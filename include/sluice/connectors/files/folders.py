"""Columns whose values are names of folders, as Hive and Spark write them: ``dt=2026-03-01/``.

Names and values have Spark's meaning (its ``PartitioningUtils``): ``%2F`` is a slash, the folder
``dt=__HIVE_DEFAULT_PARTITION__`` holds the rows whose ``dt`` is null, and a type that nobody
declared is inferred from the texts of all folders: int, bigint, decimal, double, timestamp, date,
and string for everything else and for a mixture.  Times are in UTC.  All files are below folders
of the same columns, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sluice.connectors.columns import MAX_DECIMAL_DIGITS, arrow_type
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
DECLARED_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date"),
    *("timestamp", "string"),
)
FOLDERS_KEPT = 4096

T = TypeVar("T")
Value: TypeAlias = bool | int | float | Decimal | date | datetime | str | None

_ESCAPED = re.compile("%([0-9a-fA-F]{2})")
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_REAL = re.compile(rf"\s*(?:{_NUMBER.pattern}[fFdD]?|[+-]?(?:NaN|Infinity))\s*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(rf"{_DATE.pattern} \d\d:\d\d:\d\d(?:\.\d)?")
_ANY_TIME = re.compile(rf"{_DATE.pattern}(?:[ T]\d\d:\d\d:\d\d(?:\.\d{{1,6}})?)?")

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DIGITS = {"int": 10, "bigint": 20}  # Of a decimal that holds each of them.
_STRING = ColumnType("string")


@dataclass(frozen=True, slots=True)
class FolderColumns:
    """The columns of the folders of a source, and their types."""

    types: tuple[tuple[str, ColumnType], ...] = ()

    @classmethod
    def declared(cls, owner: str, text: str) -> FolderColumns:
        """The columns of *text*, a schema as Spark writes it; none if it is empty.

        Raises:
            ConfigurationError: *text* is no schema, or has a type that no folder's name can be.
        """
        types = row_schema(owner, text) if text.strip() else {}
        for name, kind in types.items():
            if kind.name not in DECLARED_TYPES:
                raise ConfigurationError(
                    f"{owner} gives {name!r} the type {kind}, which the name of a folder cannot "
                    f"be; use {', '.join(DECLARED_TYPES)}"
                )
        return cls(tuple(types.items()))

    @classmethod
    def inferred(cls, files: Iterable[str], location: str) -> FolderColumns:
        """The columns of the folders in the names of *files*, as Spark infers them.

        Raises:
            ConfigurationError: they are below folders of different columns.
        """
        folders: dict[str, str] = {}  # Each with a file in it.
        for file in files:
            folders.setdefault(file.rpartition("/")[0], file)
        if not any(map(in_columns, folders.values())):
            return cls()
        found: list[Mapping[str, str]] = []
        for folder, file in folders.items():
            found.append(folder_texts(folder))
            if [*found[-1]] != [*found[0]]:
                raise _mixed(file, found[-1], next(iter(folders.values())), found[0], location)
        return cls(
            tuple(
                (name, reduce(_wider, {_inferred(texts[name]) for texts in found}) or _STRING)
                for name in found[0]
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.types)

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field(name, arrow_type(kind)) for name, kind in self.types]

    def values(self, file: str, location: str) -> tuple[Value, ...]:
        """The values of the columns in the rows of *file*.

        Raises:
            ConfigurationError: its folders have other columns, or one is no value of its type.
        """
        texts = folder_texts(file.rpartition("/")[0]) if self.types else {}
        if [name.lower() for name in texts] != [name.lower() for name in self.names]:
            raise ConfigurationError(
                f"{file} of {location} is in folders of {_listed(texts)}, and the columns of its "
                f"folders are {_listed(self.names)}; move it, or declare the folders' columns: "
                'Files(..., partitions="dt date"), or partitions="" for none'
            )
        found = []
        for (name, kind), text in zip(self.types, texts.values(), strict=True):
            try:
                found.append(_value(kind, text))
            except (ValueError, ArithmeticError):
                raise ConfigurationError(
                    f"{file} of {location} is in the folder of {name} {text!r}, which is no "
                    f"{kind}; declare another type, Files(..., partitions={self.written(name)!r}),"
                    " or move the file"
                ) from None
        return tuple(found)

    def table(self, files: Iterable[str], location: str) -> pa.Table | None:
        """The values in *files*, a row each; None without columns.  Raises as ``values``."""
        import pyarrow as pa

        if not self.types:
            return None
        rows = [self.values(file, location) for file in files]
        columns = [
            pa.array([row[place] for row in rows], field.type)
            for place, field in enumerate(self.fields())
        ]
        return pa.table(columns, schema=pa.schema(self.fields()))

    def are_named_by(self, word: str) -> bool:
        """Whether *word*, as ``choosing`` takes it, names columns of these folders."""
        names = {name.lower() for name in self.names}
        return all(part.partition("=")[0].lower() in names for part in word.strip("/").split("/"))

    def choosing(self, words: Iterable[str], location: str) -> Callable[[str], bool]:
        """Whether a file is in the folders that one of *words* names.

        ``dt=2026-03-01`` is one value, ``dt=2026-03-01..02`` all from one to another, of which the
        end may leave out what it shares, and ``dt=2026-03-01/country=de`` names two columns.

        Raises:
            ConfigurationError: a word names no column of the folders, or no value of its type.
        """
        kinds = {name.lower(): (place, kind) for place, (name, kind) in enumerate(self.types)}
        chosen: list[list[tuple[int, Value, Value]]] = []
        for word in words:
            bounds = []
            for part in word.strip("/").split("/"):
                name, is_given, texts = part.partition("=")
                if not is_given or name.lower() not in kinds:
                    raise ConfigurationError(
                        f"{word!r} names no column of the folders of {location}, which are "
                        f"{_listed(self.names)}; write 'dt=2026-03-01' or 'dt=2026-03-01..02'"
                    )
                place, kind = kinds[name.lower()]
                first, _, last = texts.partition("..")
                last = first[: max(len(first) - len(last), 0)] + last if last else first
                try:
                    bounds.append((place, _value(kind, first), _value(kind, last)))
                except (ValueError, ArithmeticError):
                    raise ConfigurationError(
                        f"{texts!r} in {word!r} is no {kind}, or no range of them, as {name!r} of "
                        f"{location} is; write 'dt=2026-03-01' or 'dt=2026-03-01..02'"
                    ) from None
            chosen.append(bounds)

        def is_chosen(file: str) -> bool:
            values = self.values(file, location)
            return any(
                all(_is_between(values[place], first, last) for place, first, last in bounds)
                for bounds in chosen
            )

        return is_chosen

    def added_to(
        self, rows: pa.RecordBatch, file: str, location: str, names: Collection[str] | None = None
    ) -> pa.RecordBatch:
        """*rows* of *file* with these columns, which hide those of the same name.

        Only the columns *names*, if they are given, of which ``a.b`` is a field of ``a``.
        """
        import pyarrow as pa

        if not self.types:
            return rows
        own = {name.lower() for name in self.names}
        wanted = None if names is None else {path.partition(".")[0] for path in names}
        columns = {
            name: rows.column(place)
            for place, name in enumerate(rows.schema.names)
            if name.lower() not in own and (wanted is None or name in wanted)
        }
        fields = [rows.schema.field(name) for name in columns]
        for field, value in zip(self.fields(), self.values(file, location), strict=True):
            if wanted is None or field.name in wanted:
                fields.append(field)
                columns[field.name] = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        return pa.RecordBatch.from_arrays([*columns.values()], schema=pa.schema(fields))

    def added_to_schema(self, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        own = {name.lower() for name in self.names}
        kept = [field for field in schema if field.name.lower() not in own]
        return pa.schema([*kept, *self.fields()])

    def written(self, as_string: str = "") -> str:
        """The declaration of these columns, with *as_string* as a string."""
        return ", ".join(
            f"{name} {'string' if name == as_string else kind}" for name, kind in self.types
        )


def in_columns(file: str) -> bool:
    """Whether a folder in the name *file* looks like that of a column."""
    return "=" in file.rpartition("/")[0]


@lru_cache(maxsize=FOLDERS_KEPT)
def folder_texts(folder: str) -> Mapping[str, str]:
    """The columns in the path of *folder*, and the text of each value, still escaped.

    Raises:
        ConfigurationError: one has no name or no value, or is there twice.
    """
    found: dict[str, str] = {}
    for part in folder.split("/"):
        escaped, sign, text = part.partition("=")
        if not sign:
            continue
        name = _unescaped(escaped)
        if not name or not text or name.lower() in map(str.lower, found):
            what = "without a name" if not name else "without a value" if not text else "twice"
            raise ConfigurationError(
                f"the folder {folder} has a column {what} in {part!r}; rename it, or read no "
                'columns of folders: Files(..., partitions="")'
            )
        found[name] = text
    return found


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _inferred(text: str) -> ColumnType | None:
    """The type of a value's text; None of a null."""
    if text == NULL:
        return None
    if _WHOLE.fullmatch(text):
        bits = int(text).bit_length() if int(text) >= 0 else (-int(text) - 1).bit_length()
        if bits < 64:
            return ColumnType("int" if bits < 32 else "bigint")
    if _NUMBER.fullmatch(text):
        _, digits, exponent = Decimal(text).as_tuple()
        assert isinstance(exponent, int)
        if exponent >= 0 and len(digits) + exponent <= MAX_DECIMAL_DIGITS:
            return ColumnType("decimal", (len(digits) + exponent, 0))
    if _REAL.fullmatch(text):
        return ColumnType("double")
    for kind, pattern in (("timestamp", _TIME), ("date", _DATE)):
        plain = _unescaped(text) if kind == "timestamp" else text
        if pattern.fullmatch(plain) and _is_instant(plain):
            return ColumnType(kind)
    return _STRING


def _is_instant(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _wider(one: ColumnType | None, other: ColumnType | None) -> ColumnType | None:
    """The type of a column in which both are, as Spark finds it for folders."""
    if one is None or other is None or one == other:
        return one or other
    names = {one.name, other.name}
    if names == {"date", "timestamp"}:
        return ColumnType("timestamp")
    if names == {"int", "double"}:
        return ColumnType("double")
    if names == {"int", "bigint"}:
        return ColumnType("bigint")
    if names <= {"int", "bigint", "decimal"}:
        digits = max((_DIGITS.get(kind.name) or kind.arguments[0]) for kind in (one, other))
        return ColumnType("decimal", (digits, 0))
    return _STRING


def _value(kind: ColumnType, text: str) -> Value:
    """Raises ValueError or ArithmeticError for a *text* that is no value of *kind*."""
    if text == NULL:
        return None
    match kind.name:
        case "string":
            return _unescaped(text)
        case "boolean":
            return _matched({"true": True, "false": False}.get(text.lower()))
        case "tinyint" | "smallint" | "int" | "bigint":
            number = int(_matched(_WHOLE.fullmatch(text))[0])
            limit = 1 << (_BITS[kind.name] - 1)
            return number if -limit <= number < limit else _matched(None)
        case "decimal":
            return _decimal(kind, Decimal(_matched(_NUMBER.fullmatch(text))[0]))
        case "float" | "double":
            return float(_matched(_REAL.fullmatch(text))[0].strip().rstrip("fFdD"))
        case "date":
            return date.fromisoformat(_matched(_DATE.fullmatch(text))[0])
        case _:
            plain = _matched(_ANY_TIME.fullmatch(_unescaped(text)))[0]
            return datetime.fromisoformat(plain).replace(tzinfo=UTC)


def _is_between(value: Any, first: Any, last: Any) -> bool:  # noqa: ANN401 - all of one type
    if value is None or first is None or last is None:
        return value is None and (first is None or last is None)
    return bool(first <= value <= last)


def _matched(found: T | None) -> T:
    if found is None:
        raise ValueError
    return found


def _decimal(kind: ColumnType, number: Decimal) -> Decimal:
    precision, scale = (*kind.arguments, *(10, 0)[len(kind.arguments) :])
    exact = number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=MAX_DECIMAL_DIGITS))
    if exact != number or len(exact.as_tuple().digits) > precision:
        raise ValueError
    return exact


def _mixed(
    file: str, names: Collection[str], first: str, expected: Collection[str], location: str
) -> ConfigurationError:
    return ConfigurationError(
        f"{file} of {location} is in folders of {_listed(names)}, and {first} of "
        f"{_listed(expected)}; all files need the same: move it, or read no columns of folders: "
        'Files(..., partitions="")'
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"{name}=" for name in names) or "no column"
