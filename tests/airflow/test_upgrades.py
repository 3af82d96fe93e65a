"""A declaration that changed under its job is an import error, until a restore consents to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.jobs import answer_with
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.answers import Ack
from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.restoring import Latest, RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import Declarations
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.records import checksum
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice_airflow import dags as upgrades
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.dags import require_sound
from tests.airflow.stand_in import a_job


def a_chain(stage: str = "by_auction", column: agg.Aggregate | None = None) -> Pipeline:
    pipeline = Pipeline("demo", checkpointing=Checkpointing(max_records_per_epoch=10))
    events = pipeline.source("events", Nexmark(0))
    events.key_by("auction").aggregate(stage, n=column or agg.count()).sink(
        "counts", FilesTable(upsert_key=("auction",))
    )
    return pipeline


def a_running_job(root: str) -> Job:
    """It has completed one checkpoint, with state."""
    job = a_job(root, a_chain())
    submit(job, configure(job.pipeline, {}))
    a_checkpoint(job)
    return job


def a_checkpoint(job: Job) -> None:
    """Each subtask acknowledges with a small segment, inside the ack."""
    outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    segment = SegmentHandle(key="", size_bytes=1, rows=1, checksum=checksum(b"1"), inline=b"1")
    state = StateHandle(segment=segment, first_hash=MIN_HASH, last_hash=MAX_HASH)
    plan = outcome.plan
    for task in plan.tasks:
        acks = [
            Ack(checkpoint_id=plan.checkpoint_id, subtask=subtask, attempt=1, state=(state,))
            for subtask in task.subtasks
        ]
        answer_with(job, plan, acks)
    finalize(job, outcome.plan.checkpoint_id)
    commit(job, outcome.plan.checkpoint_id)


def declared(*pipelines: Pipeline, **problems: str) -> Declarations:
    return Declarations(pipelines={p.uid: p for p in pipelines}, problems=problems)


def test_a_renamed_stage_is_an_import_error_until_the_job_is_restored_with_consent(
    root: str,
) -> None:
    job = a_running_job(root)
    renamed = declared(a_chain("per_auction"))

    require_sound(declared(a_chain()))
    with pytest.raises(ConfigurationError) as caught:
        require_sound(renamed)
    restore(
        replace(job, pipeline=a_chain("per_auction")),
        Latest(),
        RestoreOptions(allow_non_restored_state=True, consent=Consent(kept=("counts",))),
    )
    require_sound(renamed)

    first, line = str(caught.value).splitlines()
    assert first == "these declarations need a person; all others go on:"
    assert line.startswith("  pipeline demo: pipeline 'demo' changed under its job: stage 'by_auc")
    assert "Was 'by_auction' renamed to 'per_auction'? Give it its old uid back" in line


def test_another_meaning_of_state_is_an_import_error_until_a_restore_consents(root: str) -> None:
    job = a_running_job(root)
    changed = a_chain(column=agg.max("price"))

    with pytest.raises(ConfigurationError) as caught:
        require_sound(declared(changed))
    consent = Consent(begun=("by_auction.n",))
    restore(replace(job, pipeline=changed), Latest(), RestoreOptions(consent=consent))
    require_sound(declared(changed))

    assert "stage 'by_auction': column 'n' was count() and is now max(price);" in str(caught.value)


def test_every_problem_is_named_in_one_error(root: str) -> None:
    a_running_job(root)
    broken = a_chain("commit")
    broken.uid = "broken"

    with pytest.raises(ConfigurationError) as caught:
        require_sound(declared(a_chain("renamed"), broken, **{"pipelines/x.py": "line 3: no"}))

    _, module, dags, change = str(caught.value).splitlines()
    assert module == "  pipelines/x.py: line 3: no"
    assert "pipeline broken: stage 'commit'" in dags
    assert "pipeline demo: pipeline 'demo' changed" in change


def test_the_trigger_of_a_changed_declaration_fails_with_the_same_words(root: str) -> None:
    from sluice_airflow.runs import airflow_failures

    job = a_running_job(root)

    with (
        pytest.raises(AirflowFailException, match="Was 'by_auction' renamed to 'per_auction'"),
        airflow_failures(),
    ):
        trigger(replace(job, pipeline=a_chain("per_auction")))


def test_a_task_reads_nothing_of_it(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a_running_job(root)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "demo")
    monkeypatch.setattr(upgrades, "build_each", None)

    require_sound(declared(a_chain("renamed")))


@pytest.mark.parametrize(
    "bucket", ["", "misspelt", "s3://sluice-not-there/jobs", "file:///proc/nowhere"]
)
def test_a_bucket_that_cannot_be_read_is_no_import_error(
    bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLUICE_ROOT", bucket)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    require_sound(declared(a_chain()), patience_s=1)

    assert "not compared" in caplog.text or bucket.startswith("file:")
