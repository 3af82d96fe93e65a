"""Where records come from: light descriptors for declarations.

``open`` gives the connector that cuts and reads; it is imported only then, because declarations are
parsed by Airflow every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from sluice.errors import ConfigurationError
from sluice.params import Param, value_of

if TYPE_CHECKING:
    from sluice.connectors.source import Source

FORMATS = ("text", "json", "parquet")


class SourceSpec(Protocol):
    @property
    def params(self) -> tuple[Param, ...]: ...

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """Raises ConfigurationError when a parameter is missing or wrong."""
        ...


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
        return _params(self.location, self.format)

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


@dataclass(frozen=True, slots=True)
class Nexmark:
    """The Nexmark benchmark's events, generated: deterministic, addressed by event number.

    ``events`` 0 is without end.  Person : auction : bid = 1 : 3 : 46.
    """

    events: int | Param = 0
    events_per_second: int | Param = 10_000
    columns: tuple[str, ...] = ()  # Those to generate; all of them when empty.

    @property
    def params(self) -> tuple[Param, ...]:
        return _params(self.events, self.events_per_second)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:  # noqa: ARG002 - reads nothing
        from sluice.connectors.nexmark import NexmarkSource

        events = _whole_number(self.events, params)
        rate = _whole_number(self.events_per_second, params)
        if self.columns:
            return NexmarkSource(events or None, first_event_rate=rate, columns=self.columns)
        return NexmarkSource(events or None, first_event_rate=rate)


def _params(*values: str | int | Param) -> tuple[Param, ...]:
    return tuple(value for value in values if isinstance(value, Param))


def _whole_number(spec: int | Param, params: Mapping[str, str]) -> int:
    text = value_of(spec, params).replace("_", "")
    if not text.isdecimal():
        name = spec.name if isinstance(spec, Param) else "value"
        raise ConfigurationError(f"parameter {name!r} is {text!r}; give a whole number, 0 or more")
    return int(text)
