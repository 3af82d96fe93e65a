"""Findings about the project: its pipelines can be loaded, and a job's journal can be read."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.cli.diagnosis.finding import Finding, good, problem, warning
from sluice.core.ids import NO_GENERATION
from sluice.core.properties import JobStatus
from sluice.declaration.discovery import load_declarations, load_pipeline
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.job import open_job
from sluice.storage.open import StoreLocation, open_store


def pipeline_findings() -> Iterator[Finding]:
    """One for all that can be loaded, and one for each module that cannot."""
    try:
        declared = load_declarations()
    except ConfigurationError as error:
        yield problem("pipelines", error)
        return
    for module, said in declared.problems.items():
        yield problem("pipelines", f"{module} cannot be loaded: {said}")
    if declared.pipelines:
        yield good("pipelines", f"{len(declared.pipelines)}: {', '.join(declared.pipelines)}")
    elif not declared.problems:
        yield warning("pipelines", "none is declared; assign a Pipeline to a name in a module")


def job_finding(uid: str, location: StoreLocation) -> Finding:
    """The journal of the job *uid* as a coordinator would read it."""
    check = f"job {uid}"
    try:
        job = open_job(load_pipeline(uid), location, store=open_store(location))
        state = job.state()
    except SluiceError as error:
        return problem(check, error)
    if state.generation == NO_GENERATION:
        return good(check, f"never submitted in {job.store.root}")
    latest = state.latest_completed
    done = "none" if latest is None else str(latest.checkpoint_id)
    said = f"{state.status.value}, generation {state.generation}, latest checkpoint {done}"
    if state.status is JobStatus.FAILED:
        because = f" ({state.stopped_because})" if state.stopped_because else ""
        return warning(check, f"{said}{because}; mend the cause, then run: sluice restore {uid}")
    return good(check, said)
