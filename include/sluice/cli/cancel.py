"""``sluice cancel``: the job ends; what becomes of its checkpoints, the retention says."""

from __future__ import annotations

import msgspec

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    PipelineName,
    Root,
    declared_job,
)
from sluice.cli.printing import print_json, print_line
from sluice.coordinator.recovery import stop
from sluice.core.ids import NO_GENERATION
from sluice.core.properties import JobStatus
from sluice.errors import ConfigurationError
from sluice.job.never_submitted import never_submitted


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """``aborted`` were pending; ``retained`` can still be restored."""

    pipeline: str
    status: str
    aborted: list[int]
    retained: list[int]


def cancel(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """End the job: what is pending is aborted; what is retained is kept or goes, as configured."""
    job = declared_job(pipeline, root, endpoint_url)
    before = job.state()
    if before.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted(job))
    after = stop(job, JobStatus.CANCELED)
    if after.status is not JobStatus.CANCELED:
        raise ConfigurationError(
            f"job {pipeline!r} is {after.status.value}; it cannot be cancelled"
        )
    result = CancelResult(
        pipeline=pipeline,
        status=after.status.value,
        aborted=[pending.checkpoint_id for pending in before.pending],
        retained=[done.checkpoint_id for done in after.completed],
    )
    if as_json:
        print_json(result)
        return
    retained = ", ".join(map(str, result.retained)) or "none"
    print_line(f"{pipeline} is {result.status}; retained checkpoints: {retained}")
