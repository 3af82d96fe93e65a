"""The optional libraries: which extra installs each, and which versions of Airflow and Spark work.

``pip install sluice`` brings the core, the command line and the bucket.  Whatever needs another
library checks that it is installed when it is first used, and its absence is one sentence that
names the extra.
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
    "deltalake": "delta",
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
    """The versions from *first* to below *end*, as the extra in pyproject.toml asks for them."""

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
    """A *library* that the installed distribution requires, from *first* to below *end*.

    An empty *extra* is the core; an empty bound is none.
    """

    library: str
    first: str
    end: str
    extra: str

    @property
    def range(self) -> str:
        return f"{self.first} or newer" + (f", below {self.end}" if self.end else "")


AIRFLOW = SupportedVersions(name="Airflow", first="3.1", end="4")
SPARK = SupportedVersions(name="Spark", first="4.0", end="5")


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
    """The requirements of pyproject.toml, extra by extra; *lines* are those of other metadata."""
    stated = metadata.requires(DISTRIBUTION) if lines is None else lines
    matches = [_REQUIREMENT.fullmatch(line) for line in stated or ()]
    parsed = [
        Requirement(
            library=match["library"],
            first=_bound(">=", match["bounds"]),
            end=_bound("<", match["bounds"]),
            extra=match["extra"] or "",
        )
        for match in matches
        if match is not None and match["library"] != DISTRIBUTION  # "all" names the other extras.
    ]
    return tuple(sorted(parsed, key=lambda requirement: (requirement.extra, requirement.library)))


def is_within(version: str, *, first: str = "", end: str = "") -> bool:
    """Whether *version* is *first* or newer, and below *end*; an empty bound is none."""
    is_below = not end or _numbers(version) < _numbers(end)
    return is_below and _numbers(first) <= _numbers(version)


def _bound(operator: str, bounds: str) -> str:
    bound = re.search(rf"(?:^|,)\s*{operator}(?=\d)([^,]*)", bounds)
    return "" if bound is None else bound[1].strip()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # Its parent package is missing; or it has no spec.
        return False


def _numbers(version: str) -> tuple[int, ...]:
    """``4.2.0.dev1`` as (4, 2, 0): a release candidate counts as its release."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
