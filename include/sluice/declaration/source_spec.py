"""``SourceSpec``: the declaration of a source, and code that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from sluice.declaration.params import Env, Param, value_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.contracts.source import Source


class SourceSpec(Protocol):
    """A light, frozen and picklable descriptor.  ``open`` gives the connector that cuts and reads;
    it is imported only then, because declarations are parsed by Airflow every few seconds.
    """

    @property
    def params(self) -> tuple[Param, ...]: ...

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """*endpoint_url* is that of the job's S3 server, if it has one of its own.

        Raises:
            ConfigurationError: a parameter is missing or wrong.
        """
        ...


def params_of(*values: object) -> tuple[Param, ...]:
    return tuple(value for value in values if isinstance(value, Param))


def whole_number(spec: int | Param | Env, params: Mapping[str, str]) -> int:
    """Raises ConfigurationError unless it is 0 or more."""
    text = value_of(spec, params).replace("_", "")
    if not text.isdecimal():
        name = spec.name if isinstance(spec, Param | Env) else "value"
        raise ConfigurationError(f"parameter {name!r} is {text!r}; give a whole number, 0 or more")
    return int(text)
