"""The dry run: what a restore would do, or everything that stands against it."""

from __future__ import annotations

from sluice.coordinator.observation import as_chosen, observe
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import NO_GENERATION
from sluice.core.restoring import (
    DeclaredStage,
    Restore,
    RestoreOptions,
    RestoreTarget,
    Stop,
    choose,
    decide,
)
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job

DEFAULT_OPTIONS = RestoreOptions()


def plan_restore(
    job: Job,
    target: RestoreTarget,
    options: RestoreOptions = DEFAULT_OPTIONS,
    *,
    configuration: JobConfiguration | None = None,
) -> Restore | Stop:
    """What ``restore`` would do, and every file it would need: the dry run.  Writes nothing."""
    state = job.state()
    if state.generation == NO_GENERATION and configuration is None:
        problem = (
            f"job {job.pipeline.uid!r} was never submitted in {job.store.root}, so it has no "
            "parameters; submit it first, or restore it with a configuration"
        )
        return Stop(problems=(problem,))
    options = as_chosen(state, target, options)
    choice = choose(state, target, options)
    if isinstance(choice, Stop):
        return choice
    continued = configuration or state.configuration
    try:
        observed = observe(job, choice, state, continued, options)
    except (RestoreError, ConfigurationError) as error:
        return Stop(problems=(str(error),))
    stages = [
        DeclaredStage(
            uid=uid,
            parallelism=job.parallelism_of(uid, continued),
            max_parallelism=job.pipeline.max_parallelism,
            reads=stage.producers,
        )
        for uid, stage in job.pipeline.stages.items()
    ]
    return decide(state, choice, observed, stages, options)
