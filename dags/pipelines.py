"""Every DAG of every pipeline that include/pipelines/ declares.

One that is broken takes no other one away; dags/declarations.py says what is wrong with it.
"""

from __future__ import annotations

from sluice.declarations import load_declarations
from sluice_airflow.upgrades import build_each

globals().update(build_each(load_declarations().pipelines)[0])
