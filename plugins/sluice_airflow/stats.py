"""A job's metrics as gauges in Airflow's own stats (StatsD, Datadog or OpenTelemetry), and the
traces of its checkpoints.

They are emitted where a checkpoint has ended, and by the watchdog each minute.  Best effort: what
fails is logged, and changes nothing.  Where Airflow's stats are off nothing is read.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from sluice.core.ids import CheckpointId
from sluice_airflow.compat import airflow_stats, configuration

if TYPE_CHECKING:
    from sluice.figures.metrics import Sample
    from sluice.job.job import Job

log = logging.getLogger(__name__)

_SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]")  # Airflow's normalize_name_for_stats.
_TEXTS = frozenset({"path"})  # Labels that are texts, which a gauge cannot have.


def emit_stats(job: Job) -> None:
    """Two LISTs and three or four GETs, and a packet for each metric."""
    if not _are_on():
        return
    from sluice.surface.monitoring import metrics

    try:
        for sample in metrics(job):
            if sample.metric.label not in _TEXTS:
                tags = dict(zip(sample.metric.labels, sample.labels, strict=True))
                airflow_stats().gauge(
                    stat_name(sample, tagged=_are_tagged()), sample.value, tags=tags
                )
    except Exception:  # Nothing depends on it.
        log.warning("stats not emitted pipeline=%s", job.pipeline.uid, exc_info=True)


def stat_name(sample: Sample, *, tagged: bool) -> str:
    """``sluice.job.numRestarts``; without tags the labels are in it, as
    ``sluice.stage.auctions.count_bids.stateSize``.
    """
    labels = () if tagged else (_part(label) for label in sample.labels)
    return ".".join(["sluice", sample.metric.scope.value, *labels, sample.metric.name])


def _part(label: str) -> str:
    return _NOT_IN_NAMES.sub("_", label).replace(".", "__")


def _are_on() -> bool:
    conf = configuration()
    return any(conf.getboolean("metrics", switch, fallback=False) for switch in _SWITCHES)


def _are_tagged() -> bool:
    """Whether Airflow sends tags: all but plain StatsD do."""
    conf = configuration()
    is_datadog = conf.getboolean("metrics", "statsd_datadog_enabled", fallback=False)
    is_plain = conf.getboolean("metrics", "statsd_on", fallback=False) and not conf.getboolean(
        "metrics", "statsd_influxdb_enabled", fallback=False
    )
    return is_datadog or not is_plain


def try_to_send_trace(job: Job, checkpoint_id: CheckpointId) -> None:
    """The checkpoint's trace, linked to the span of Airflow's task."""
    from sluice.surface import monitoring

    try:
        monitoring.send_trace(job, checkpoint_id)
    except Exception:  # Nothing depends on it.
        log.warning("trace not sent checkpoint_id=%d", checkpoint_id, exc_info=True)


def send_newest_trace(job: Job) -> None:
    """The trace of the checkpoint that ended last, for a task that does not know which it was."""
    from sluice.job.snapshots import newest_ended
    from sluice.surface.monitoring import is_tracing

    newest = newest_ended(job.state()) if is_tracing() else None
    if newest is not None:
        try_to_send_trace(job, CheckpointId(newest))
