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


class SourceSpec(Protocol):
    @property
    def params(self) -> tuple[Param, ...]: ...

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """Raises ConfigurationError when a parameter is missing or wrong."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """Lines of the files at *location*: a file, a folder, or a ``file://`` or ``s3://`` URI.

    Columns: ``line`` string, ``file`` string, ``line_number`` long (from 1).  A bounded source ends
    where the files end when they are looked at, and then the job drains; an unbounded one goes on.
    """

    location: str | Param
    format: Literal["text"] = "text"
    bounded: bool = True

    @property
    def params(self) -> tuple[Param, ...]:
        return _params(self.location)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        from sluice.connectors.files import FilesSource

        location = value_of(self.location, params)
        return FilesSource(location, bounded=self.bounded, endpoint_url=endpoint_url)


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
