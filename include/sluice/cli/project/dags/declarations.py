"""No DAG: an import error here names each declaration that is broken or changed under its job."""

from sluice_airflow.dags import require_sound_pipelines

require_sound_pipelines()
