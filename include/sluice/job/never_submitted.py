"""What is said of a job that nothing is known of in its root."""

from __future__ import annotations

from sluice.job.job import Job


def never_submitted(job: Job) -> str:
    uid = job.pipeline.uid
    return (
        f"job {uid!r} was never submitted in {job.store.root}; start it with 'sluice run {uid}', "
        "or name another --root"
    )
