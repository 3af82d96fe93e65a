"""The metadata of the provider ``sluice``, for the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from sluice.extras import DISTRIBUTION


def get_provider_info() -> dict[str, str]:
    """The metadata in the form of Airflow's provider_info.schema.json."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Sluice",
        "description": "Consistent checkpoints, savepoints and restore for chains of Spark stages.",
    }
