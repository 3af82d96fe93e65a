"""``Files``: the declared source of files of a folder or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from sluice.connectors.files.folders import FolderColumns
from sluice.declaration.arguments import NumberLimits, checked_initializer
from sluice.declaration.column_types import row_schema
from sluice.declaration.columns import check_source_columns
from sluice.declaration.params import Env, Param, of_place, said_of, value_of
from sluice.declaration.places import (
    Dataset,
    GivenForm,
    SourceMeaning,
    TextDecoding,
    dataset_at,
    nulls_of,
    params_of,
)
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.places import Filler, Source

FORMATS = ("text", "json", "csv", "parquet", "avro")
DECODED = ("json", "csv")  # The formats that Spark decodes, with a schema.

Format: TypeAlias = Literal["text", "json", "csv", "parquet", "avro"]

# Options that decide which rows are malformed, and where a row ends: they cannot be declared.
FIXED_OPTIONS = (
    *("mode", "columnNameOfCorruptRecord", "multiLine", "lineSep", "header", "encoding"),
    "charset",
)
# The others that say how Spark reads a row of known columns; to Spark they are one in any case.
_OF_BOTH = (
    *("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat", "timeZone", "locale"),
    "enableDateTimeParsingFallback",
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "json": (
        *_OF_BOTH,
        *("primitivesAsString", "allowComments", "allowUnquotedFieldNames", "allowSingleQuotes"),
        *("allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter"),
        *("allowUnquotedControlChars", "allowNonNumericNumbers"),
    ),
    "csv": (
        *_OF_BOTH,
        *("sep", "delimiter", "quote", "escape", "comment", "nullValue", "emptyValue", "nanValue"),
        *("positiveInf", "negativeInf", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"),
        *("maxColumns", "maxCharsPerColumn", "charToEscapeQuoteEscaping"),
        "unescapedQuoteHandling",
    ),
}

_CSV: Mapping[str, str] = {"delimiter": ",", "quote": '"', "escape": '"', "null_value": ""}
# What only some formats have: the value that says nothing, and these formats.
_OF_FORMATS: Mapping[str, tuple[object, tuple[str, ...]]] = {
    "schema": ("", DECODED),
    "options": ({}, DECODED),
    "header": (False, ("csv",)),
    **{name: (text, ("csv",)) for name, text in _CSV.items()},
}

# Longer than a writer pauses within a file, and short enough to report a dead writer that day.
GIVE_UP_AFTER_S = 3600


@checked_initializer
@dataclass(frozen=True, slots=True)
class Files:
    """The files at *location*: a file, a folder, or a ``file://`` or ``s3://`` URI.

    ``text``     a row per line: ``line`` string, ``file`` string, ``line_number`` long (from 1)
    ``json``     an object per line, with the columns of *schema*, written as Spark writes it:
                 ``"event_type int, bid struct<auction: bigint, price: bigint>"``
    ``csv``      a row per line, with the columns of *schema*; a field has no line break
    ``parquet``  the files' own columns
    ``avro``     the files' own columns

    Text, JSON and CSV are in UTF-8, and may be compressed: ``*.gz``, ``*.zst``, ``*.zstd``,
    ``*.bz2``, ``*.xz``.  The format may be a parameter; *schema* and the options of CSV are then
    used if it needs them.  A bounded source ends with the files that exist when they are listed,
    and the job drains; an unbounded one goes on.

    ``ordered``: whoever writes the files of an unbounded source promises that when a file appears,
    all files of smaller names are complete.  So only new files are listed, and files that were read
    are forgotten.  ``give_up_after_s``: the seconds without a write after which an incomplete file
    is an error.  ``on_lost``: what to do when a file is gone, or another one has its name, and
    something was not read of it: with "skip" the source logs it and goes on.

    CSV: with a ``header`` the first line of each file has to name the columns of *schema*;
    ``escape`` stands before a ``quote`` within quotes, ``"\\\\"`` in files that Spark wrote;
    ``null_value`` is the text of a null, and so is the empty text.  ``options`` are further ones
    of Spark's ``from_csv`` or ``from_json``: ``timestampFormat``, ``dateFormat``, ...

    ``partitions``: the columns in the names of folders (``dt=2026-03-01/country=de/``) with their
    types, ``"dt date, country string"``; by default they are discovered, and typed as Spark types
    them, and with "" the folders have none.  ``replaced``: what new files are in a folder whose
    files were read and are gone, as Spark overwrites a partition: an error, or, with "append",
    new rows.  With "by partition" the rows are those of the files that are there: a file that is
    gone takes its rows back, and one that was rewritten is read anew.
    """

    location: str | Param | Env
    format: Format | Param = "text"
    schema: str = ""
    bounded: bool = True
    ordered: bool = False
    give_up_after_s: Annotated[int, NumberLimits(0)] = GIVE_UP_AFTER_S
    on_lost: Literal["fail", "skip"] = "fail"
    header: bool = False
    delimiter: str = _CSV["delimiter"]
    quote: str = _CSV["quote"]
    escape: str = _CSV["escape"]
    null_value: str = _CSV["null_value"]
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    partitions: str | None = None
    replaced: Literal["fail", "append", "by partition"] = "fail"

    def __post_init__(self) -> None:
        if not isinstance(self.format, Param):
            self._check_format(self.format)
        if self.ordered and self.bounded:
            raise ConfigurationError(
                f"Files({self.location!r}) is ordered and bounded; order says what may be "
                "forgotten of files that go on appearing: add bounded=False, or drop ordered=True"
            )
        if self.ordered and self.takes_rows_back:
            raise ConfigurationError(
                f"Files({self.location!r}) is ordered, so it lists the last files alone, and "
                "replaced='by partition' needs to see which of all are gone; drop ordered=True"
            )
        for name, text in (("quote", self.quote), ("escape", self.escape)):
            if len(text) != 1:
                raise ConfigurationError(
                    f"{name} of Files({self.location!r}) is {text!r}; give one character"
                )
        if not self.delimiter or {"\n", "\r"} & set(self.delimiter):
            raise ConfigurationError(
                f"delimiter of Files({self.location!r}) is {self.delimiter!r}; give one that is "
                "no line break"
            )
        self._check_options()
        self._folders()

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.location, self.format)

    @property
    def takes_rows_back(self) -> bool:
        """See ``ChangingSourceSpec``."""
        return self.replaced == "by partition"

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        return (dataset_at(of_place(self.location, params)),)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        from sluice.connectors.files.avro import AvroSource
        from sluice.connectors.files.parquet import ParquetSource
        from sluice.connectors.files.text import FilesSource

        format_ = value_of(self.format, params)
        self._check_format(format_)
        source: Callable[..., Source] = ParquetSource if format_ == "parquet" else AvroSource
        if format_ not in {"parquet", "avro"}:
            decoding = self._decoding(format_)
            source = partial(FilesSource, format=format_, text_decoding=decoding)
        return source(
            value_of(self.location, params),
            bounded=self.bounded,
            endpoint_url=endpoint_url,
            ordered=self.ordered,
            give_up_after_s=self.give_up_after_s,
            skips_lost=self.on_lost == "skip",
            folders=self._folders(),
            takes_replaced=self.replaced == "append",
            keeps_copies=self.takes_rows_back,
        )

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        location = said_of(self.location, params).removeprefix("file://")
        format_ = said_of(self.format, params)
        options = dict(self.options)
        columns: dict[str, str] = {}
        if format_ == "csv":
            own = {
                "delimiter": self.delimiter,
                "quote": self.quote,
                "escape": self.escape,
                "null_value": self.null_value,
            }
            options |= {name: text for name, text in own.items() if text != _CSV[name]}
            options |= {"header": "true"} if self.header else {}
            names = row_schema("the source", self.schema)
            columns = {name: f"field {place}" for place, name in enumerate(names, start=1)}
        listed = ", ".join(f"{name}={text!r}" for name, text in sorted(options.items()))
        return SourceMeaning(
            places=(f"files {location.rstrip('/') or '/'}",),
            decoding=f"{format_}({listed})" if listed else format_,
            columns=columns,
        )

    def given_form(self, params: Mapping[str, str]) -> GivenForm | None:
        """See ``GivenSourceSpec``."""
        import pyarrow as pa

        from sluice.connectors.files.lines import lines_schema
        from sluice.connectors.files.text import with_folders

        format_ = value_of(self.format, params)
        self._check_format(format_)
        if format_ in {"parquet", "avro"}:
            return None
        folders = self._folders() or FolderColumns()  # There is no folder to discover them in.
        decoding = self._decoding(format_)
        if decoding is not None:
            decoding = with_folders(decoding, folders, f"Files({self.location!r})")
        fills: dict[str, Filler] = {
            "file": lambda _, count: pa.repeat(pa.scalar("rows"), count),
            "line_number": lambda first, count: pa.array(range(first + 1, first + count + 1)),
        }
        return GivenForm(
            schema=folders.added_to_schema(lines_schema()),
            decoding=decoding,
            fills=fills | {one.name: nulls_of(one.type) for one in folders.fields()},
            text="line",
        )

    def _folders(self) -> FolderColumns | None:
        if self.partitions is None:
            return None
        return FolderColumns.declared(f"partitions of Files({self.location!r})", self.partitions)

    def _decoding(self, format_: str) -> TextDecoding | None:
        match format_:
            case "json":
                return TextDecoding(format="json", schema=self.schema, options=dict(self.options))
            case "csv":
                csv = {
                    "sep": self.delimiter,
                    "quote": self.quote,
                    "escape": self.escape,
                    "nullValue": self.null_value,
                }
                return TextDecoding(
                    format="csv",
                    schema=self.schema,
                    options=csv | dict(self.options),
                    has_header=self.header,
                )
            case _:
                return None

    def _check_options(self) -> None:
        fixed = {name.lower() for name in FIXED_OPTIONS}
        if wrong := [name for name in self.options if name.lower() in fixed]:
            raise ConfigurationError(
                f"Files({self.location!r}) sets the option {wrong[0]!r}, which sluice decides "
                "itself; drop it (a header is header=True, and a line is a row)"
            )
        if self.format in OPTIONS:
            known = {name.lower(): name for name in OPTIONS[str(self.format)]}
            for name in self.options:
                if name.lower() not in known:
                    close = get_close_matches(name.lower(), known, n=1)
                    hint = f"did you mean {known[close[0]]!r}? " if close else ""
                    raise ConfigurationError(
                        f"Files({self.location!r}) sets the option {name!r}, which Spark does not "
                        f"know for {self.format}; {hint}it has {', '.join(known.values())}"
                    )
        for name, (nothing, formats) in _OF_FORMATS.items():
            given, format_ = getattr(self, name), self.format
            if not isinstance(format_, Param) and format_ not in formats and given != nothing:
                raise ConfigurationError(
                    f"Files({self.location!r}) has {name}={given!r}, which its format {format_!r} "
                    f"does not use; drop it, or declare format={' or '.join(map(repr, formats))}"
                )

    def _check_format(self, format_: str) -> None:
        where = (
            f"parameter {self.format.name!r}"
            if isinstance(self.format, Param)
            else f"the format of Files({self.location!r})"
        )
        if format_ not in FORMATS:
            raise ConfigurationError(f"{where} is {format_!r}; use {', '.join(FORMATS)}")
        if format_ in DECODED and not self.schema.strip():
            what = "objects" if format_ == "json" else "rows"
            raise ConfigurationError(
                f"{where} is {format_!r}, and nothing says what the {what} hold; add "
                'Files(..., schema="name string, count bigint"), as Spark writes a schema'
            )
        if format_ in DECODED:
            owner = f"the schema of Files({self.location!r})"
            columns = row_schema(f"Files({self.location!r})", self.schema)
            check_source_columns([*columns], owner)
            nested = [name for name, of in columns.items() if of.fields]
            if format_ == "csv" and nested:
                raise ConfigurationError(
                    f"{owner} has a column {nested[0]!r} of type {columns[nested[0]]}, and a field "
                    "of CSV holds one value; declare it as string, and take it apart in a select()"
                )
