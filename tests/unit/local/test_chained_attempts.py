"""The attempt of a chain: it begins again when Spark lost a part of it, and acknowledges whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from harness.jobs import STAGES, a_running_job, answer_with, trigger_one
from sluice.core.answers import Execution
from sluice.core.plan import CheckpointPlan
from sluice.errors import StageFailed
from sluice.job.answers import answers_to
from sluice.job.job import Job
from sluice.spark import stage as stage_module
from sluice.spark.stage import run_stage
from tests.fuzz.session import Session, spark_in_process

FIRST, LAST = STAGES
Executions = Callable[[Any], list[Execution]]


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with spark_in_process():
        yield


@pytest.fixture(name="job")
def _job() -> Job:
    return a_running_job()


def run(job: Job, plan: CheckpointPlan) -> None:
    spark: Any = Session(Random(7))
    run_stage(job, spark, plan.checkpoint_id, FIRST, attempt=1)


def acknowledged(job: Job, plan: CheckpointPlan) -> list[str]:
    answers = job.answers.observe(plan.checkpoint_id, plan.token)
    return sorted(stage for stage, _ in answers.answered)


def lost(times: int, how: Callable[[list[Execution]], list[Execution]]) -> Executions:
    """What the first *times* Spark jobs come to is as *how* makes it."""
    real, runs = stage_module._executions, list[int]()  # noqa: SLF001 - the job's end

    def executions(deployed: Any) -> list[Execution]:
        runs.append(1)
        done = real(deployed)
        return how(done) if len(runs) <= times else done

    return executions


def one_read_another(done: list[Execution]) -> list[Execution]:
    first, *others = done
    assert first.ack.subtask.stage == LAST
    return [replace(first, read=("another", *first.read[1:])), *others]


def spark_gives_up(_: list[Execution]) -> list[Execution]:
    raise RuntimeError("A shuffle map stage with indeterminate output was failed and retried.")


@pytest.mark.parametrize("how", [one_read_another, spark_gives_up])
def test_a_part_that_was_lost_is_no_failure_of_the_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    plan = trigger_one(job)
    monkeypatch.setattr(stage_module, "_executions", lost(1, how))
    run(job, plan)
    assert acknowledged(job, plan) == [*STAGES]


@pytest.mark.parametrize("how", [one_read_another, spark_gives_up])
def test_the_second_time_it_fails_and_no_stage_has_acknowledged(
    job: Job, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    plan = trigger_one(job)
    monkeypatch.setattr(stage_module, "_executions", lost(2, how))
    with pytest.raises(StageFailed, match=f"stage {FIRST!r} failed") as raised:
        run(job, plan)
    assert raised.value.is_transient
    assert acknowledged(job, plan) == []


def test_of_two_drivers_of_one_attempt_the_second_changes_nothing(job: Job) -> None:
    plan = trigger_one(job)
    run(job, plan)
    before = answers_to(job, job.state(), plan.checkpoint_id)
    with pytest.raises(StageFailed, match="another driver of the same attempt"):
        run(job, plan)
    assert answers_to(job, job.state(), plan.checkpoint_id) == before


def test_no_stage_in_front_acknowledges_where_another_driver_did_behind(job: Job) -> None:
    plan = trigger_one(job)
    others = stage_module._executions  # noqa: SLF001 - the job's end

    def with_another_driver(deployed: Any) -> list[Execution]:
        done, another = others(deployed), others(deployed)
        last = [one.ack for one in another if one.ack.subtask.stage == LAST]
        answer_with(job, plan, sorted(last, key=lambda ack: ack.subtask))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_module, "_executions", with_another_driver)
        with pytest.raises(StageFailed, match="another driver of the same attempt"):
            run(job, plan)
    assert acknowledged(job, plan) == [LAST]
