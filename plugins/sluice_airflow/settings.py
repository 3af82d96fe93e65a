"""Where the bucket and Spark are: read from the environment of an Airflow component, here only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.storage.open import StoreLocation

ROOT_VARIABLE = "SLUICE_ROOT"
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_S3"
SPARK_VARIABLE = "SLUICE_SPARK_REMOTE"
SPARK_UI_VARIABLE = "SLUICE_SPARK_UI"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the deployment fixed; each property says what to set when it is missing."""

    env: Mapping[str, str]

    @classmethod
    def from_environment(cls) -> Self:
        return cls(env=os.environ)

    @property
    def location(self) -> StoreLocation:
        from sluice.storage.open import StoreLocation

        root = self._required(ROOT_VARIABLE, "the root of all jobs, as s3://bucket/prefix")
        return StoreLocation(root=root, endpoint_url=self.env.get(ENDPOINT_VARIABLE) or None)

    @property
    def spark_remote(self) -> str:
        return self._required(SPARK_VARIABLE, "the Spark Connect server, as sc://host:port")

    @property
    def spark_ui(self) -> str:
        """Where a person sees Spark's jobs and executors' logs; empty when nobody said."""
        return self.env.get(SPARK_UI_VARIABLE, "").rstrip("/")

    def _required(self, name: str, meaning: str) -> str:
        value = self.env.get(name, "")
        if not value:
            raise ConfigurationError(
                f"{name} is not set; set it in every Airflow component to {meaning}"
            )
        return value
