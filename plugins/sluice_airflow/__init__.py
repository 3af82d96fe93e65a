"""The Airflow provider: DAGs and operators that delegate every decision to the coordinator.

Importing from here is cheap, because every task imports the DAG file: the bucket's client, Spark
and providers are imported inside the methods that use them.
"""

from __future__ import annotations

from sluice.extras import DISTRIBUTION


def get_provider_info() -> dict[str, str]:
    """The metadata of the provider, in the form of Airflow's provider_info.schema.json."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Sluice",
        "description": "Consistent checkpoints, savepoints and restore for chains of Spark stages.",
    }
