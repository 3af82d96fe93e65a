"""What a person names, and what a `_metadata` names, stays within its job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.jobs import a_job, a_pipeline, a_running_job, keys_of
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.savepoints import copy_savepoint, require_outside
from sluice.coordinator.submission import configure, submit
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import ClaimMode
from sluice.core.handles import SegmentHandle
from sluice.core.restoring import RestoreOptions
from sluice.errors import ConfigurationError, ProtocolViolation, RestoreError
from sluice.job.job import Job
from sluice.protocol.records import decode_metadata, encode_metadata
from tests.resealed import resealed
from tests.subtasks import a_savepoint, savepoint_key, take_checkpoint, take_checkpoints

INSIDE = ["auctions", "auctions/journal", "auctions/savepoints", "auctions/tables/results/x"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def job(root: Path) -> Job:
    job = a_job(root=f"file://{root}")
    submit(job, configure(job.pipeline, {}))
    return job


@pytest.mark.parametrize("folder", INSIDE)
def test_a_savepoint_is_not_copied_into_its_own_job(job: Job, root: Path, folder: str) -> None:
    a_savepoint(job, "mine")
    before = keys_of(job)

    with pytest.raises(ConfigurationError, match=r"lies inside job 'auctions'.*outside of it"):
        copy_savepoint(job, "mine", f"file://{root}/{folder}")

    assert keys_of(job) == before
    take_checkpoint(job)


def test_a_link_into_a_job_leads_there(job: Job, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(root / "auctions/journal")

    with pytest.raises(ConfigurationError, match="lies inside job 'auctions'"):
        require_outside(job, f"file://{tmp_path}/elsewhere/deep")


@pytest.mark.parametrize("spelled", ["./auctions", "../root/auctions", "auctions//journal"])
def test_a_root_with_detours_is_none(job: Job, root: Path, spelled: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'\.' or '\.\.' part"):
        require_outside(job, f"file://{root}/{spelled}")


def test_another_job_is_as_much_out_of_bounds(job: Job, tmp_path: Path) -> None:
    other = a_job(root=f"file://{tmp_path}/staging")
    submit(other, configure(other.pipeline, {}))

    with pytest.raises(ConfigurationError, match=r"inside job 'auctions', whose prefix is .*stag"):
        require_outside(job, f"file://{tmp_path}/staging/auctions/journal")


def test_the_jobs_own_root_is_no_other_one(job: Job, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="is the job's own root"):
        require_outside(job, f"file://{root}/")


@pytest.mark.parametrize("folder", ["root/backups", "backups", "root/auctions_copy", "staging"])
def test_a_place_beside_all_jobs_is_taken(job: Job, tmp_path: Path, folder: str) -> None:
    a_savepoint(job, "mine")

    place = copy_savepoint(job, "mine", f"file://{tmp_path}/{folder}")

    assert [*Path(place.removeprefix("file://")).glob("*/_metadata")]


def test_the_rule_holds_for_a_bucket_at_its_very_top() -> None:
    job = a_job(root="memory://bucket-of-one")
    submit(job, configure(job.pipeline, {}))

    with pytest.raises(ConfigurationError, match="lies inside job 'auctions'"):
        require_outside(job, "memory://bucket-of-one/auctions/shared")
    assert require_outside(job, "memory://bucket-of-one/backups").root.endswith("backups")


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
