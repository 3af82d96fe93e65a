"""Nothing that a person names is written into a job's prefix, however it is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import a_job, keys_of
from sluice.coordinator.savepoints import copy_savepoint, require_outside
from sluice.coordinator.submission import configure, submit
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from tests.subtasks import a_savepoint, take_checkpoint

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
