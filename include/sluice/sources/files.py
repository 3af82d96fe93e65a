"""Files of a folder or a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sluice.errors import ConfigurationError
from sluice.params import Param, value_of
from sluice.sources.spec import params_of

if TYPE_CHECKING:
    from sluice.connectors.source import Source

FORMATS = ("text", "json", "parquet")


@dataclass(frozen=True, slots=True)
class Files:
    """The files at *location*: a file, a folder, or a ``file://`` or ``s3://`` URI.

    ``text``     a row per line: ``line`` string, ``file`` string, ``line_number`` long (from 1)
    ``json``     an object per line, with the columns of *schema*, written as Spark writes it:
                 ``"event_type int, bid struct<auction: bigint, price: bigint>"``
    ``parquet``  the files' own columns

    Text and JSON may be compressed, ``*.gz``.  The format may be a parameter; then *schema* counts
    when it is ``json``.  A bounded source ends where the files end when they are looked at, and
    then the job drains; an unbounded one goes on.
    """

    location: str | Param
    format: Literal["text", "json", "parquet"] | Param = "text"
    schema: str = ""
    bounded: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.format, Param):
            self._check_format(self.format)

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.location, self.format)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        from sluice.connectors.files import FilesSource
        from sluice.connectors.parquet import ParquetSource

        location = value_of(self.location, params)
        format_ = value_of(self.format, params)
        self._check_format(format_)
        if format_ == "parquet":
            return ParquetSource(location, bounded=self.bounded, endpoint_url=endpoint_url)
        return FilesSource(
            location,
            format=format_,
            bounded=self.bounded,
            endpoint_url=endpoint_url,
            json_schema=self.schema if format_ == "json" else None,
        )

    def _check_format(self, format_: str) -> None:
        where = (
            f"parameter {self.format.name!r}"
            if isinstance(self.format, Param)
            else f"the format of Files({self.location!r})"
        )
        if format_ not in FORMATS:
            raise ConfigurationError(f"{where} is {format_!r}; use {', '.join(FORMATS)}")
        if format_ == "json" and not self.schema.strip():
            raise ConfigurationError(
                f"{where} is 'json', and nothing says what the objects hold; add "
                'Files(..., schema="name string, count bigint"), as Spark writes a schema'
            )
