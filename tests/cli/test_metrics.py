"""``sluice metrics``, read by Prometheus' own parser."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.jobs import STAGES, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.requests import NewTimes, pause, retime
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.figures.metrics import METRICS
from sluice.job.job import Job
from sluice.surface.checkpoints import details, overview
from sluice.surface.monitoring import CONTENT_TYPE, exposed_name, metrics_text
from tests.cli.conftest import Sluice
from tests.subtasks import take_checkpoint

Values = dict[tuple[str, str], float]


@pytest.fixture
def job() -> Job:
    """Two completed checkpoints and a failed one."""
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    take_checkpoint(job)
    take_checkpoint(job)
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, trigger_one(job).checkpoint_id, reason, "too slow")
    return job


def parsed(text: str) -> Values:
    """The samples of pipeline *auctions*, by name and the other label."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("pipeline") == "auctions":
                values[sample.name, next(iter(labels.values()), "")] = sample.value
    return values


def test_the_figures_are_those_of_the_statistics(job: Job, sluice: Sluice) -> None:
    found = parsed(sluice("metrics", "auctions").out)

    seen = overview(job)
    assert seen.latest.completed is not None
    assert found["sluice_job_numberOfCompletedCheckpoints", ""] == seen.counts.completed == 2
    assert found["sluice_job_numberOfFailedCheckpoints", ""] == seen.counts.failed == 1
    assert found["sluice_job_lastCompletedCheckpointId", ""] == 2
    assert found["sluice_job_lastCheckpointFullSize", ""] == seen.latest.completed.state_size
    assert found["sluice_job_checkpointInterval", ""] == 60_000
    assert found["sluice_job_numRecords", ""] == 10
    of_stage = details(job, CheckpointId(2)).stages[0].checkpointed_size
    assert found["sluice_stage_checkpointedSize", STAGES[0]] == of_stage
    assert found["sluice_job_jobStatus", "RUNNING"] == 1
    path = f"{job.store.root}/{job.paths.checkpoint(2)}"
    assert found["sluice_job_lastCheckpointExternalPath", path] == 1


def test_the_interval_is_what_a_person_made_of_it(job: Job, sluice: Sluice) -> None:
    name = ("sluice_job_checkpointInterval", "")

    retime(job, NewTimes(interval=timedelta(seconds=90)), by="ada")
    changed = parsed(sluice("metrics", "auctions").out)
    pause(job, by="ada")
    paused = parsed(sluice("metrics", "auctions").out)

    assert changed[name] == 90_000
    assert name not in paused


def test_every_sample_has_a_help_text_and_is_one_that_is_declared(sluice: Sluice) -> None:
    text = sluice("metrics", "auctions").out

    declared = {exposed_name(metric): metric.documentation for metric in METRICS.values()}
    families = {one.name: one.documentation for one in text_string_to_metric_families(text)}
    assert families.items() <= declared.items()


def test_orphans_are_counted_where_they_are_asked_for(job: Job, sluice: Sluice) -> None:
    name = ("sluice_job_numberOfOrphans", "")

    assert name not in parsed(sluice("metrics", "auctions").out)
    assert parsed(sluice("metrics", "auctions", "--orphans").out)[name] == 0


def test_a_job_that_cannot_be_read_hides_no_other(job: Job) -> None:
    broken = a_running_job(a_pipeline())
    for listed in broken.store.list(broken.paths.journal()):
        broken.store.put(listed.key, b"damaged")

    found = metrics_text([broken, job])

    assert 'sluice_job_isReadable{pipeline="auctions"} 0.0' in found
    assert "sluice_job_numberOfCompletedCheckpoints" in found
    assert CONTENT_TYPE.startswith("text/plain")


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:9464", "every network of this machine"),
        ("[::]:9464", "every network of this machine"),
        ("127.0.0.1", "has no port"),
        ("127.0.0.1:99999", "has no port"),
        ("192.0.2.1:9464", "cannot be had"),
    ],
)
def test_an_address_is_refused_with_what_to_write(listen: str, said: str, sluice: Sluice) -> None:
    assert said in sluice("metrics", "auctions", "--listen", listen).error
