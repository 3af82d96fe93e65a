"""Garbage collection asks the store little of a table of 10,000 versions, and misses nothing."""

from __future__ import annotations

import secrets

import msgspec
import pytest

from harness.counting import counting_every_store
from harness.counting_store import CountingStore
from harness.jobs import STAGES, a_pipeline, results
from sluice.connectors.files_table.log import MANIFEST_FORMAT_VERSION, Manifest
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_files import RowFile, data_prefix, manifest_key
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.submission import configure, submit
from sluice.job.job import open_job
from sluice.store.memory import InMemoryStore
from sluice.store.open import StoreLocation

VERSIONS = 10_000
BUDGET = 50  # 22 are pages of the listings.
TOKEN = "of_a_checkpoint"
LONGEST_LIFE = "0" * 32


def file_of(version: int, subtask: int, attempt: str = "1f3a") -> str:
    return f"{data_prefix(version, TOKEN)}{subtask:05d}-{attempt}-0000.parquet"


def fill(table: ManifestTable, versions: int, *, subtasks: int = 1) -> None:
    for version in range(1, versions + 1):
        names = [file_of(version, subtask) for subtask in range(subtasks)]
        for name in names:
            table.store.put(name, b"12345")
        manifest = Manifest(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=version,
            parent=version - 1 or None,
            files=tuple(RowFile(file=name, rows=1_234_567, size_bytes=5) for name in names),
            upsert_key=None,
            life=LONGEST_LIFE,
            sink="",
            generation=12,
        )
        table.store.put(manifest_key(version), msgspec.json.encode(manifest))


def test_a_collection_does_not_read_the_manifests_of_what_it_lists() -> None:
    with counting_every_store() as store:
        pipeline = a_pipeline(stages=STAGES[:1], num_retained_versions=VERSIONS)
        job = open_job(pipeline, StoreLocation(root=f"memory://{secrets.token_hex(6)}"))
        submit(job, configure(pipeline, {}))
        fill(results(job), VERSIONS)
        with store.counted() as asked:
            orphans = collect_garbage(job, grace_ms=0)

    assert orphans.files == ()
    assert asked.total() < BUDGET, asked


REPEATED, NOT_TAKEN = file_of(7, 0, "2b"), file_of(7, 99)
OF_ANOTHER = file_of(7, 0).replace(TOKEN, "of_a_fenced_one")


@pytest.mark.parametrize(
    ("left", "subtasks"),
    [(REPEATED, 1), (REPEATED, 90), (OF_ANOTHER, 1), (OF_ANOTHER, 90), (NOT_TAKEN, 4)],
)
def test_what_a_manifest_leaves_out_is_found_by_reading_that_one(left: str, subtasks: int) -> None:
    """An attempt that was repeated, one whose file nobody took, and another coordinator's."""
    store = CountingStore(InMemoryStore())
    table = ManifestTable("alerts", store)
    fill(table, 10, subtasks=subtasks)
    store.put(left, b"12345")

    with store.counted() as asked:
        found = table.unpublished()

    assert [one.file for one in found.staged] == [left]
    assert asked == {"list": 4, "get": 1}  # Two folders of files, two of the log.
