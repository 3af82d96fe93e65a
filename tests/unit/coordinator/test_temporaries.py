"""Temporary files of a killed writer are collected, late and by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.jobs import a_job, keys_of
from sluice.coordinator.garbage import (
    TEMPORARY_GRACE_MS,
    Orphan,
    Orphans,
    Reason,
    collect_garbage,
    find_orphans,
)
from sluice.coordinator.submission import configure, submit
from sluice.errors import ProtocolViolation
from sluice.job.job import Job
from sluice.protocol.keys import TEMPORARY_PREFIX
from sluice.store.folder import FileStore
from tests.subtasks import take_checkpoint

FOLDERS = ("auctions/journal", "auctions/shared/count_bids", "auctions/tables/results/data")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = a_job(root=f"file://{tmp_path}/root")
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    return job


def leave_behind(root: Path, folder: str, *, age_ms: int) -> str:
    """A temporary file so much older than the newest object."""
    files = [path for path in root.rglob("*") if path.is_file()]
    newest_ns = max(path.stat().st_mtime_ns for path in files)
    path = root / folder / f"{TEMPORARY_PREFIX}{age_ms:024x}"
    path.write_bytes(b"half")
    # Whole milliseconds, as the listing rounds down.
    at_ns = (newest_ns // 1_000_000 - age_ms) * 1_000_000
    os.utime(path, ns=(at_ns, at_ns))
    return f"{folder}/{path.name}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_of_a_killed_writer_is_collected_after_a_day(
    job: Job, tmp_path: Path, folder: str
) -> None:
    root = tmp_path / "root"
    old = leave_behind(root, folder, age_ms=TEMPORARY_GRACE_MS)
    young = leave_behind(root, folder, age_ms=TEMPORARY_GRACE_MS - 1)
    before = keys_of(job)

    found = find_orphans(job, grace_ms=0)
    collect_garbage(job, grace_ms=0)

    def an_orphan(key: str) -> Orphan:
        return Orphan(key=key, size_bytes=4, reason=Reason.TEMPORARY)

    assert found == Orphans(files=(an_orphan(old),), too_young=(an_orphan(young),))
    assert not (root / old).exists()
    assert (root / young).exists()
    assert keys_of(job) == before


def test_the_file_of_another_job_is_that_ones_to_collect(job: Job, tmp_path: Path) -> None:
    (tmp_path / "root/payroll/journal").mkdir(parents=True)
    theirs = leave_behind(tmp_path / "root", "payroll/journal", age_ms=9 * TEMPORARY_GRACE_MS)

    collect_garbage(job, grace_ms=0)

    assert (tmp_path / "root" / theirs).exists()


def test_nothing_but_a_temporary_file_goes_by_that_way(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.put("a/b", b"kept")
    (tmp_path / f"{TEMPORARY_PREFIX}outside").write_bytes(b"kept")

    store.discard_temporaries(["a/b", f"a/{TEMPORARY_PREFIX}gone"])
    with pytest.raises(ProtocolViolation, match="is no key"):
        store.discard_temporaries([f"../{TEMPORARY_PREFIX}outside"])

    assert store.get("a/b") == b"kept"
    assert (tmp_path / f"{TEMPORARY_PREFIX}outside").exists()
