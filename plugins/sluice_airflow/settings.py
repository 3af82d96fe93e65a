"""The deployment's settings: bucket and Spark, read from the environment only here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.store.open import StoreLocation

ROOT_VARIABLE = "SLUICE_ROOT"
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_S3"
SPARK_VARIABLE = "SLUICE_SPARK_REMOTE"
SPARK_UI_VARIABLE = "SLUICE_SPARK_UI"
DRILLS_VARIABLE = "SLUICE_DRILLS"

PREFIX, VERSION = "/sluice", "v1"  # Of the REST API: where Airflow mounts it, and its version.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The deployment's settings; the error of a missing one names the variable to set."""

    env: Mapping[str, str]

    @classmethod
    def from_environment(cls) -> Self:
        return cls(env=os.environ)

    @property
    def location(self) -> StoreLocation:
        from sluice.store.open import StoreLocation

        root = self._required(ROOT_VARIABLE, "the root of all jobs, as s3://bucket/prefix")
        return StoreLocation(root=root, endpoint_url=self.env.get(ENDPOINT_VARIABLE) or None)

    @property
    def spark_remote(self) -> str:
        return self._required(SPARK_VARIABLE, "the Spark Connect server, as sc://host:port")

    def session(self, pipeline: str, stage: str = "") -> str:
        """The name of a Spark session of *pipeline*, or of a *stage* of it.  A server may have the
        jobs of several roots, which interrupt each its own stages.
        """
        return f"{pipeline}.{stage}@{self.location.name}"

    @property
    def spark_ui(self) -> str:
        """The address of Spark's UI for people; empty when it is not set."""
        return self.env.get(SPARK_UI_VARIABLE, "").rstrip("/")

    @property
    def allows_drills(self) -> bool:
        """Whether a run's form may plant a fault."""
        return self.env.get(DRILLS_VARIABLE) == "1"

    def _required(self, name: str, meaning: str) -> str:
        value = self.env.get(name, "")
        if not value:
            raise ConfigurationError(
                f"{name} is not set; set it in every Airflow component to {meaning}"
            )
        return value
