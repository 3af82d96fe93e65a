"""No DAG: an import error here names each declaration that is broken or changed under its job."""

from __future__ import annotations

from sluice.declarations import load_declarations
from sluice_airflow.upgrades import require_sound

require_sound(load_declarations())
