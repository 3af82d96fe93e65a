"""The DAGs of one declared job as Airflow finds them in its bundle, without any run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.airflow.conftest import DAGS, HOME
from tests.airflow.database import migrate

if TYPE_CHECKING:
    from airflow.sdk import DAG

DAG_FILE = '''
"""An airflow dag file, as dags/pipelines.py is one."""
from sluice_airflow.dag_factory import build_dags
from tests.airflow.stand_in import a_pipeline

globals().update(build_dags({"demo": a_pipeline()}))
'''


@contextmanager
def demo_dags() -> Iterator[dict[str, DAG]]:
    """The DAGs, by id; the file and the runs go when the block ends.

    A run that a module leaves ``running`` would be one that the next module's DAG still waits for.
    """
    migrate()
    path = DAGS / "demo.py"
    path.write_text(DAG_FILE)

    from tests.airflow.releases import a_bag

    bag = a_bag(path, DAGS)
    assert bag.import_errors == {}
    import_path = [*sys.path]
    try:
        yield bag.dags
    finally:
        sys.path[:] = import_path  # dag.test() adds to it, and to the environment.
        left = ("AIRFLOW_CTX_", "_AIRFLOW_PARSING_CONTEXT_")
        for name in [name for name in os.environ if name.startswith(left)]:
            del os.environ[name]
        path.unlink()
        _forget_runs(bag.dags)
        shutil.rmtree(HOME / "logs", ignore_errors=True)


def _forget_runs(dag_ids: Collection[str]) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_(dag_ids)))
