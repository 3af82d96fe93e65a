"""The submission of a job: its configuration is resolved once and journaled, and it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.coordinator.duties import resume_duties
from sluice.coordinator.record import record
from sluice.coordinator.tables import compare_tables_to_submit
from sluice.core.configuration import JobConfiguration
from sluice.core.events import JobSubmitted, RootAdopted, Verdict
from sluice.core.ids import Generation
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.lifecycle import next_generation
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision, decide_tables, table_problems
from sluice.declaration.checkpointing import check_max_records, fixed_configuration
from sluice.declaration.params import resolve_params
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job, never_submitted_message, new_life
from sluice.job.places import verify_tables

log = logging.getLogger(__name__)

MOST_DIGITS = 9  # Of a parallelism; Python refuses thousands by another error.


def configure(
    pipeline: Pipeline,
    params: Mapping[str, str],
    *,
    parallelism: int | None = None,
    stage_parallelism: Mapping[str, int] | None = None,
    max_records_per_epoch: int | None = None,
) -> JobConfiguration:
    """Check the values that a person gave, and add the declaration's options to them.

    Raises:
        ConfigurationError: a value is missing, unknown or out of its limits.
    """
    check_max_records(max_records_per_epoch)
    check_stages(pipeline, parallelism, stage_parallelism or {})
    fixed = fixed_configuration(pipeline.checkpointing)
    return replace(
        fixed,
        params=resolve_params(pipeline.params, params, pipeline.uid),
        parallelism=parallelism,
        stage_parallelism=dict(stage_parallelism or {}),
        max_records_per_epoch=max_records_per_epoch or fixed.max_records_per_epoch,
        has_given_max_records=max_records_per_epoch is not None,
    )


def check_stages(pipeline: Pipeline, of_all: int | None, of_stages: Mapping[str, int]) -> None:
    """Raises ConfigurationError for a parallelism above its limit, or of no stage."""
    if of_all is not None:
        for stage in pipeline.stages:
            _check_parallelism(pipeline, stage, of_all)
    for stage, count in of_stages.items():
        if stage not in pipeline.stages:
            raise ConfigurationError(
                f"parallelism is given for {stage!r}, which is no stage of {pipeline.uid!r}; "
                f"those are {', '.join(pipeline.stages)}"
            )
        _check_parallelism(pipeline, stage, count)


def _check_parallelism(pipeline: Pipeline, stage: str, parallelism: int) -> None:
    maximum = pipeline.max_parallelism or default_max_parallelism(parallelism)
    check_parallelism(stage, parallelism, maximum)


def reconfigure(
    pipeline: Pipeline,
    before: JobConfiguration,
    params: Mapping[str, str],
    *,
    parallelism: int | None = None,
    stage_parallelism: Mapping[str, int] | None = None,
) -> JobConfiguration:
    """The configuration of a job that is restored: the options of the declaration as it is now.

    Parameters, parallelism and ``max_records_per_epoch`` that a person gave *before*, and does not
    give now, stay, except for what is no longer declared.

    Raises:
        ConfigurationError: a value is unknown or out of its limits.
    """
    declared = {declared.name for declared in pipeline.params}
    kept = {name: value for name, value in before.params.items() if name in declared}
    kept_stages = {
        uid: count for uid, count in before.stage_parallelism.items() if uid in pipeline.stages
    }
    return configure(
        pipeline,
        kept | dict(params),
        parallelism=before.parallelism if parallelism is None else parallelism,
        stage_parallelism=kept_stages | dict(stage_parallelism or {}),
        max_records_per_epoch=(
            before.max_records_per_epoch if before.has_given_max_records else None
        ),
    )


def parse_parallelism(texts: Sequence[str]) -> tuple[int | None, dict[str, int]]:
    """``["4", "window_rule=8"]``: the parallelism of every stage, and of single ones.

    Raises:
        ConfigurationError: a text has another form.
    """
    of_all: int | None = None
    of_stages: dict[str, int] = {}
    for text in texts:
        stage, _, count = text.strip().rpartition("=")
        if not count.strip().isdecimal() or len(count) > MOST_DIGITS:
            raise ConfigurationError(
                f"parallelism is {text[:40]!r}; write a whole number, or one for a stage as "
                "window_rule=8"
            )
        if stage:
            of_stages[stage.strip()] = int(count)
        else:
            of_all = int(count)
    return of_all, of_stages


def check_sources(
    pipeline: Pipeline, configuration: JobConfiguration, endpoint_url: str | None
) -> None:
    """Raises ConfigurationError if a source is not read, or cannot be from its beginning."""
    for node in pipeline.sources.values():
        if not node.is_table and not pipeline.consumers_of(node.uid):
            raise ConfigurationError(
                f"source {node.uid!r} is read by no stage of pipeline {pipeline.uid!r}; let one "
                "read it, or drop it"
            )
        source = node.spec.open(configuration.params, endpoint_url)
        source.plan((), max_records=1, parallelism=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConsent:
    """The fate of rows that another life of a job wrote to a table: they are rolled back, or
    accepted, or accepted in the tables of the sinks in ``take_over`` alone.
    """

    roll_back: bool = False
    accept: bool = False
    take_over: tuple[str, ...] = ()


NO_CONSENT = TableConsent()


def submit(
    job: Job,
    configuration: JobConfiguration,
    *,
    only_generation: Generation | None = None,
    tables: TableConsent = NO_CONSENT,
) -> CoordinatorState:
    """Start a new life of the pipeline from empty state; earlier checkpoints stay where they are.

    With *only_generation* nothing happens unless the job is still of that generation: a process
    that found the job unsubmitted, and then slept, does not begin it anew once it has ended.

    Raises:
        ConfigurationError: the job runs already, a source or a store cannot be used, or a table has
            rows of another life and *tables* does not say what becomes of them.
        FencedError: the job is of another generation.
    """
    check_sources(job.pipeline, configuration, job.location.endpoint_url)
    state = job.state()
    if only_generation not in (None, state.generation):
        raise FencedError(f"another coordinator submitted job {job.pipeline.uid!r} first")
    if state.is_alive:
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} is {state.status.value} in {job.store.root}; "
            f"stop it first: sluice cancel {job.pipeline.uid}"
        )
    verify_tables(job, configuration.params)
    event = JobSubmitted(
        at_ms=job.now_ms(),
        generation=next_generation(state),
        configuration=configuration,
        life=new_life(),
        place=job.location.name,
        tables=_decide_tables(job, state, configuration, tables),
    )
    transition = record(job, lambda _: event)
    if transition.verdict is not Verdict.APPLIED:
        raise FencedError(f"another coordinator submitted job {job.pipeline.uid!r} first")
    log.info(
        "job submitted pipeline=%s generation=%d life=%s",
        job.pipeline.uid, event.generation, event.life,
    )  # fmt: skip
    if transition.state.table_recovery is None:
        return transition.state
    return resume_duties(job, job.journal.load()).state


def adopt(job: Job) -> CoordinatorState:
    """Go on with the job in this root, a copy of the one in which it was or that one, moved.

    The caller says that nothing of the job runs there any more.  What is pending is aborted.

    Raises:
        ConfigurationError: nothing was submitted here, or the root is no copy.
        FencedError: another coordinator took over meanwhile.
    """
    state = job.state()
    if not state.life:
        raise ConfigurationError(never_submitted_message(job))
    if state.place in ("", job.location.name):
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} is in {job.store.root}, which is no copy: go on with it"
        )
    event = RootAdopted(
        at_ms=job.now_ms(), generation=next_generation(state), place=job.location.name
    )
    transition = record(job, lambda _: event)
    if transition.verdict is not Verdict.APPLIED:
        raise FencedError(f"another coordinator took job {job.pipeline.uid!r} over first")
    log.warning(
        "root adopted pipeline=%s generation=%d before=%s",
        job.pipeline.uid, event.generation, state.place,
    )  # fmt: skip
    return transition.state


def _decide_tables(
    job: Job, state: CoordinatorState, configuration: JobConfiguration, consent: TableConsent
) -> TableDecision:
    tables = compare_tables_to_submit(job, state, configuration)
    problems = table_problems(
        tables, roll_back=consent.roll_back, accepts=consent.accept, take_over=consent.take_over
    )
    if problems:
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} cannot begin in {job.store.root}: {'; '.join(problems)}"
        )
    for table in tables:
        if (taking_over := table.taking_over(roll_back=consent.roll_back)) is not None:
            log.warning("%s", taking_over)
    return decide_tables(
        tables, roll_back=consent.roll_back, accepts=consent.accept, take_over=consent.take_over
    )
