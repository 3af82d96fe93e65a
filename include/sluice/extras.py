"""The optional libraries: which extra installs each, and which versions of Airflow and Spark work.

``pip install sluice`` brings the core, the command line and the bucket.  A library beyond these is
asked for where it is first needed, and its absence is one sentence that names the extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from sluice.errors import ConfigurationError

DISTRIBUTION = "sluice"  # As pyproject.toml, and Airflow's list of providers, name it.

_EXTRAS = {
    "airflow": "airflow",
    "airflow.providers.apache.spark": "submit",
    "confluent_kafka": "kafka",
    "fastavro": "avro",
    "google.protobuf": "kafka",
    "opentelemetry.exporter.otlp": "otel",
    "opentelemetry.sdk": "otel",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "sqlalchemy": "iceberg",
    "zstandard": "avro",
}

_REQUIREMENT = re.compile(
    r"(?P<library>[\w.-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*?)\s*"
    r"""(?:;\s*extra\s*==\s*["'](?P<extra>[\w-]+)["'])?"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersions:
    """From *first* to below *end*, as the extra in pyproject.toml asks for it."""

    name: str
    first: str
    end: str

    def check(self, version: str, where: str = "") -> None:
        """Raises ConfigurationError unless *version*, the one found *where*, is supported."""
        if not is_within(version, first=self.first, end=self.end):
            raise ConfigurationError(
                f"{self.name} {version}{where} is not supported; Sluice runs on {self.name} "
                f"{self.first} or newer, below {self.end}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A *library* of an *extra*, or of the core for an empty one, from *first* to below *end*, if
    any, as the installed distribution asks for it.
    """

    library: str
    first: str
    end: str
    extra: str

    @property
    def said(self) -> str:
        return f"{self.first} or newer" + (f", below {self.end}" if self.end else "")


AIRFLOW = SupportedVersions(name="Airflow", first="3.3", end="4")
SPARK = SupportedVersions(name="Spark", first="4.2", end="5")


def require_installed(*modules: str, who: str) -> None:
    """Raises ConfigurationError that names the extra to install unless all *modules* are there.

    *who* needs them, for the message: ``the Kafka source of topics 'orders'``.
    """
    for module in modules:
        if not _is_installed(module):
            raise ConfigurationError(
                f"{who} needs the library {module}, which is not installed; run: "
                f"pip install '{DISTRIBUTION}[{_EXTRAS[module]}]'"
            )


def requirements(lines: Iterable[str] | None = None) -> tuple[Requirement, ...]:
    """What pyproject.toml states, extra by extra; *lines* as a distribution's metadata has them."""
    stated = metadata.requires(DISTRIBUTION) if lines is None else lines
    found = [_REQUIREMENT.fullmatch(line) for line in stated or ()]
    parsed = [
        Requirement(
            library=one["library"],
            first=_bound(">=", one["bounds"]),
            end=_bound("<", one["bounds"]),
            extra=one["extra"] or "",
        )
        for one in found
        if one is not None and one["library"] != DISTRIBUTION  # "all" names the other extras.
    ]
    return tuple(sorted(parsed, key=lambda one: (one.extra, one.library)))


def is_within(version: str, *, first: str = "", end: str = "") -> bool:
    """Whether *version* is *first* or newer, and below *end*; an empty bound is none."""
    is_below = not end or _numbers(version) < _numbers(end)
    return is_below and _numbers(first) <= _numbers(version)


def _bound(operator: str, bounds: str) -> str:
    found = (part.strip() for part in bounds.split(","))
    return next(
        (one.removeprefix(operator) for one in found if re.match(rf"{operator}\d", one)), ""
    )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # Its parent package is missing; or it has no spec.
        return False


def _numbers(version: str) -> tuple[int, ...]:
    """``4.2.0.dev1`` as (4, 2, 0): a release candidate counts as its release."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
