"""The reaper: ends Spark applications of a job's stages that no attempt awaits any more.

An application outlives the task that submitted it, if the worker died.  Once its checkpoint was
aborted, or its attempt overtaken, its acks do not count, and it only holds cores.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sluice.declaration.schedules import Submit
from sluice_airflow.application_names import ApplicationName, short_life

if TYPE_CHECKING:
    from sluice.job.job import Job

log = logging.getLogger(__name__)


def reap(job: Job, submit: Submit) -> list[str]:
    """Kill what no attempt awaits; return the names.  A cluster that does not answer is logged.

    The state is read after the cluster: whatever runs was journaled before it was submitted, and an
    attempt that has ended never comes back.
    """
    try:
        return _reap(job, submit)
    except Exception:  # Nothing but cores depends on it, and the next look tries again.
        log.warning("applications not reaped pipeline=%s", job.pipeline.uid, exc_info=True)
        return []


def _reap(job: Job, submit: Submit) -> list[str]:
    from sluice_airflow.spark_clusters import cluster_of

    before = job.state()
    lives = {short_life(life) for life in (before.life, *before.earlier_lives) if life}
    if not lives:
        return []
    cluster = cluster_of(submit)
    found = cluster.applications(lives)
    if not found:
        return []
    state, reaped = job.state(), []
    for application in found:
        name = ApplicationName.parse(application.name)
        if name is None or name.pipeline != job.pipeline.uid or name.is_awaited(state):
            continue
        cluster.kill(application)
        log.info("application killed name=%s id=%s", application.name, application.id)
        reaped.append(application.name)
    return reaped
