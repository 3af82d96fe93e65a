"""A stage's job: what it is called, which files it need not read, and where rows are placed."""

from __future__ import annotations

from typing import Any

import pytest

from harness.jobs import STAGES, a_running_job, trigger_one
from sluice.connectors.files.folders import FolderColumns
from sluice.core.failures import note_of_stage
from sluice.core.ids import SubtaskId
from sluice.core.plan import CheckpointPlan, Slice
from sluice.declaration.expressions import Filter, Projection, Step
from sluice.job.job import Job
from sluice.job.stage_input import StageInput
from sluice.spark import versions
from sluice.spark.pruning import pruned_slices
from sluice.spark.stage import stage_failure
from sluice.spark.tasks import StageRun
from tests.subtasks import decline

FIRST, SECOND = STAGES[:2]
LATER = SubtaskId(SECOND, 0)


def chain_of(job: Job, plan: CheckpointPlan, attempt: int) -> list[StageRun]:
    rest: dict[str, Any] = {"spark": None, "before": None, "given": StageInput()}
    configuration = job.state().configuration
    return [
        StageRun(
            job=job,
            plan=plan,
            node=node,
            configuration=configuration,
            attempt=attempt,
            driver="mine",
            **rest,
        )
        for node in job.pipeline.stages.values()
    ]


def test_the_stage_is_named_that_declined_or_that_raised() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    chain, error = chain_of(job, plan, 1), ValueError("no such row")
    assert stage_failure(chain, error).stage == FIRST

    error.add_note(note_of_stage(SECOND))
    raised = stage_failure(chain, error)
    decline(job, plan.checkpoint_id, LATER)
    declined = stage_failure(chain, ValueError("killed"))

    assert (raised.stage, raised.is_declined) == (SECOND, False)
    assert raised.cause == "ValueError: no such row"
    assert (declined.stage, declined.is_declined) == (SECOND, True)


def test_what_an_earlier_attempt_declined_is_not_said_again() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    decline(job, plan.checkpoint_id, LATER)

    failed = stage_failure(chain_of(job, plan, 2), ValueError("no such row"))

    assert (failed.stage, failed.is_declined) == (FIRST, False)


def test_hashes_of_numbers_are_those_of_spark() -> None:
    """``SELECT hash(0), hash(1), hash(42), hash(2147483647)`` on Spark 4.3."""
    hashed = [versions._hash(number) for number in (0, 1, 42, 2**31 - 1)]  # noqa: SLF001

    assert hashed == [933211791, -559580957, 29417773, 133916647]


def test_every_partition_has_a_number_that_leads_there() -> None:
    for partitions in (1, 2, 7, 128, 1000):
        numbers = versions._numbers_by_partition(partitions)  # noqa: SLF001

        assert [versions._hash(n) % partitions for n in numbers] == [*range(partitions)]  # noqa: SLF001


FILES = [
    "dt=2026-03-01/hour=1/c=de/a",
    "dt=2026-03-02/hour=2/c=__HIVE_DEFAULT_PARTITION__/b",
    "dt=2026-03-03/hour=3/c=fr/c",
]
FOLDERS = FolderColumns.inferred(FILES, "here")


def kept(*steps: Step) -> str:
    slices = [
        Slice(partition=file, start=at, end=at + 1, first_record=at, records=1)
        for file in FILES
        for at in range(2)
    ]
    found = pruned_slices(slices, steps, lambda files: FOLDERS.table(files, "here"))
    assert len(found.kept) + len(found.pruned) == len(slices)
    return "".join(dict.fromkeys(piece.partition[-1] for piece in found.kept))


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("dt = '2026-03-02'", "b"),
        ("'2026-03-02' <= DT and amount > 5", "bc"),
        ("dt in ('2026-03-01', '2026-03-03')", "ac"),
        ("dt between '2026-03-02' and '2026-03-09' and hour + 1 < 4", "b"),
        ("not (dt = '2026-03-02')", "ac"),
        ("dt > DATE '2026-03-01' or amount > 5", "abc"),
        ("c = 'de'", "a"),  # A null is not 'de', and not another one either.
        ("c != 'de'", "c"),
        ("c is null or hour = 3", "bc"),
        ("dt = 'no day'", "abc"),  # Spark says what is wrong.
        ("hour / 0 = 1", "abc"),
        ("soundex(c) = 'D000'", "abc"),  # Only Spark computes it.
        ("amount > 5", "abc"),
        ("false", ""),
    ],
)
def test_files_of_which_no_row_passes_are_left_out(condition: str, files: str) -> None:
    assert kept(Filter(condition)) == files


def test_only_filters_that_stand_directly_behind_the_source_count() -> None:
    behind = Projection(("amount", "hour + 1 AS hour"))

    assert kept(Filter("hour > 1"), Filter("hour < 3"), behind, Filter("hour > 9")) == "b"
    assert kept(behind, Filter("hour = 1")) == "abc"


def test_a_folder_may_be_called_as_a_column_that_only_stages_may_not_have() -> None:
    files = ["_place=2/a", "_place=1/b", "_place=0/c"]
    folders = FolderColumns.inferred(files, "here")
    slices = [Slice(partition=f, start=0, end=1, first_record=0, records=1) for f in files]

    found = pruned_slices(
        slices, [Filter("_place = 2")], lambda files: folders.table(files, "here")
    )

    assert [piece.partition for piece in found.kept] == ["_place=2/a"]
