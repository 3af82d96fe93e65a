"""A ``_metadata`` that names what is not its job's: nothing of that is read, and none deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.jobs import a_pipeline, a_running_job
from sluice.coordinator.restore import restore, savepoint_target
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import ClaimMode
from sluice.core.handles import SegmentHandle
from sluice.core.restoring import RestoreOptions
from sluice.errors import ProtocolViolation, RestoreError
from sluice.job.job import Job
from sluice.protocol.records import decode_metadata, encode_metadata
from tests.resealed import resealed
from tests.subtasks import a_savepoint, savepoint_key, take_checkpoint, take_checkpoints

VICTIM = "payroll/journal/000000000042"
ELSEWHERE = [
    VICTIM,
    "auctions/journal/000000000001",
    "auctions/savepoints/other/c0.arrow",
    "auctions/shared/count_bids/0000000001-c0.arrow",
    "auctions/savepoints/gift/../../../payroll/journal/000000000042",
    "../outside",
]


def naming(metadata: CheckpointMetadata, handle: SegmentHandle) -> CheckpointMetadata:
    stage = metadata.stages[0]
    subtask = stage.subtasks[0]
    grown = replace(subtask, state=(*subtask.state, replace(subtask.state[0], segment=handle)))
    changed = replace(stage, subtasks=(grown, *stage.subtasks[1:]))
    return replace(metadata, stages=(changed, *metadata.stages[1:]))


def rewrite(job: Job, key: str, handle: SegmentHandle) -> None:
    raw = job.store.get(key)
    assert raw is not None
    job.store.put(key, encode_metadata(naming(decode_metadata(raw, key), handle)))


def a_handle(key: str, root: str = "") -> SegmentHandle:
    return SegmentHandle(key=key, size_bytes=10, rows=0, checksum="00", root=root)


@pytest.mark.parametrize("mode", ClaimMode)
@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_savepoint_names_files_of_its_own_folder_alone(key: str, mode: ClaimMode) -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    job.store.put(VICTIM, b"x" * 10)
    a_savepoint(job, "gift")
    target = savepoint_target(job, "gift")
    rewrite(job, savepoint_key(job, "gift"), a_handle(key))

    with pytest.raises(RestoreError, match="is no file of savepoint 'gift'"):
        restore(job, target, RestoreOptions(claim_mode=mode))

    take_checkpoints(job, 2)
    assert job.store.get(VICTIM) == b"x" * 10


def test_a_savepoint_is_self_contained() -> None:
    job = a_running_job()
    a_savepoint(job, "gift")
    own = job.savepoint_metadata("gift").files[0]
    rewrite(job, savepoint_key(job, "gift"), replace(own, root="memory://elsewhere"))

    with pytest.raises(ProtocolViolation, match=r"memory://elsewhere/.* is no file of savepoint"):
        job.savepoint_metadata("gift")


@pytest.mark.parametrize("key", [VICTIM, "auctions/journal/000000000001", "auctions/tables/a/b"])
def test_a_checkpoint_names_what_its_job_wrote_alone(key: str) -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    job.store.put(VICTIM, b"x" * 10)
    first = take_checkpoint(job)
    rewrite(job, job.paths.metadata(first), a_handle(key))

    with pytest.raises(ProtocolViolation, match="is no file of job 'auctions'"):
        job.metadata(first)


def test_a_file_of_another_root_is_read_there() -> None:
    job = a_running_job()
    first = take_checkpoint(job)
    rewrite(job, job.paths.metadata(first), a_handle("other/shared/a", root="memory://elsewhere"))

    assert job.metadata(first).files[0].root == ""
    assert {one.root for one in job.metadata(first).files} == {"", "memory://elsewhere"}


@pytest.mark.parametrize("checksum", ["../../x", "", "a/b", ".."])
def test_a_checksum_names_a_file_in_the_cache_and_no_other(checksum: str) -> None:
    job = a_running_job()
    first = take_checkpoint(job)
    key = job.paths.metadata(first)
    raw = job.store.get(key)
    assert raw is not None
    mark = b'"checksum":"' + job.metadata(first).files[0].checksum.encode() + b'"'
    job.store.put(key, resealed(raw.replace(mark, b'"checksum":"' + checksum.encode() + b'"')))

    with pytest.raises(ProtocolViolation, match="a checksum is letters and digits"):
        job.metadata(first)
