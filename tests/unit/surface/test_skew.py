"""How unevenly subtasks work, read off the statistics of completed checkpoints."""

from __future__ import annotations

from harness.jobs import STAGES, a_pipeline, a_running_job
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.core.answers import HotGroup, LateRows, SubtaskMetrics
from sluice.core.restoring import Latest
from sluice.job.job import Job
from sluice.surface.checkpoints import JobSkew, job_skew
from tests.subtasks import measure, take_checkpoint


def work(job: Job, *rows: int, late: LateRows | None = None) -> None:
    """A checkpoint whose subtasks of the first stage have read so many *rows*, in their order;
    each of them has found *late* ones of the source.
    """
    measure(
        job,
        *(
            SubtaskMetrics(
                started_at_ms=1_000,
                acknowledged_at_ms=1_000 + many,
                rows_in=many,
                late={} if late is None else {"bids": late},
            )
            for many in rows
        ),
    )


def test_a_job_without_a_completed_checkpoint_has_no_skew() -> None:
    assert job_skew(a_running_job()) == JobSkew(checkpoints=0, stages=())


def test_the_worst_subtask_is_named_with_how_often_and_how_far_it_is_above_the_median() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    work(job, 10, 30)
    work(job, 40, 20)
    work(job, 10, 90)

    found = job_skew(job)

    assert found.checkpoints == 3
    first, second = found.stages
    assert (first.id, first.num_subtasks, second.id) == (STAGES[0], 2, STAGES[1])
    rows = first.figures["rows_in"]
    assert (rows.worst, rows.worst_in) == (1, 2)
    assert rows.ratio == (30 + 40 + 90) / (20 + 30 + 50)
    assert [(one.checkpoint, one.median, one.max, one.subtask) for one in rows.points] == [
        (1, 20, 30, 1), (2, 30, 40, 0), (3, 50, 90, 1),
    ]  # fmt: skip
    assert [one.max for one in first.figures["duration"].points] == [30, 40, 90]


def test_a_figure_that_is_zero_for_all_has_no_worst_subtask() -> None:
    job = a_running_job()
    work(job, 1, 2)

    late = job_skew(job).stages[0].figures["late_rows"]

    assert (late.ratio, late.worst_in) == (None, 0)


def test_late_rows_are_added_up_by_what_they_are_of_and_the_farthest_is_kept() -> None:
    job = a_running_job()
    work(job, 1, 1, late=LateRows(rows=3, most_ms=70_000, within=(1, 2, 2, 3, 3, 3)))
    work(job, 1, 1)
    work(job, 1, 1, late=LateRows(rows=1, most_ms=90_000, within=(0, 0, 0, 1, 1, 1)))

    first, second = job_skew(job).stages

    assert first.late == {"bids": LateRows(rows=8, most_ms=90_000, within=(2, 4, 4, 8, 8, 8))}
    assert second.late == {}


def test_checkpoints_of_another_parallelism_are_left_out() -> None:
    job = a_running_job()
    take_checkpoint(job)
    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=3))
    take_checkpoint(job)

    found = job_skew(job)

    assert (found.checkpoints, found.stages[0].num_subtasks) == (1, 3)


def test_the_hottest_key_groups_of_all_checkpoints_are_named_with_their_newest_keys() -> None:
    job = a_running_job()
    old, new = (HotGroup(group=7, rows=8, keys=(key,)) for key in ("k=old", "k=new"))
    others = tuple(HotGroup(group=group, rows=group, keys=()) for group in range(1, 5))
    for hot in (old, new):
        measure(
            job,
            SubtaskMetrics(rows_in=20, hot_groups=(hot,)),
            SubtaskMetrics(rows_in=30, hot_groups=others),
        )

    [first, _] = job_skew(job).stages

    assert first.rows_in == 100
    assert first.hot_groups == (
        HotGroup(group=7, rows=16, keys=("k=new",)),
        *(HotGroup(group=group, rows=2 * group) for group in (4, 3, 2, 1)),
    )
    assert job_skew(job, names_keys=False).stages[0].hot_groups[0] == HotGroup(group=7, rows=16)
