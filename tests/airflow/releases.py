"""What the tests ask of Airflow, and 3.1 has elsewhere than 3.2 and later."""

from __future__ import annotations

from pathlib import Path

try:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.serialization.serialized_objects import DagSerialization

    IS_3_1 = False
except ImportError:
    from airflow.models.dagbag import DagBag, sync_bag_to_db
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

    IS_3_1 = True


def passwords() -> dict[str, str]:
    """Those that Airflow drew for the users of its simple auth manager."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    users = [SimpleAuthManager.get_users()] if IS_3_1 else []
    found: dict[str, str] = SimpleAuthManager.get_passwords(*users)
    return found


def a_bag(path: Path, bundle_path: Path) -> DagBag:
    """The DAGs of a file or folder *path* in a bundle."""
    name = {} if IS_3_1 else {"bundle_name": "dags-folder"}
    return DagBag(dag_folder=str(path), bundle_path=bundle_path, **name)


__all__ = ["IS_3_1", "DagBag", "DagSerialization", "a_bag", "passwords", "sync_bag_to_db"]
