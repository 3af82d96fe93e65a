"""A stage's failure in one sentence: the stage, what it was reading, and the cause last."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from sluice.core.causes import Cause, code_place, root_cause, stage_in
from sluice.errors import StageFailed, StoreUnavailable
from sluice.spark.stage_run import StageRun

NAMED_PARTITIONS = 2
_SPARK = ("pyspark", "py4j")
_LOST = "indeterminate output was failed and retried"  # DAGScheduler, by checksums of shuffles.


def cause_of(error: BaseException) -> Cause:
    """The root cause of *error*, raised by Spark, a worker or the user's code."""
    kind = type(error)
    if kind.__module__.startswith(_SPARK):
        found = root_cause(str(error))
        place = found.place or _user_place(error)
        return Cause(found.said, place, is_transient=found.is_transient)
    found = root_cause("".join(traceback.format_exception(error)))
    is_transient = isinstance(error, StoreUnavailable)
    return Cause(found.said, found.place, is_transient=is_transient)


def stage_failure(chain: Sequence[StageRun], error: Exception) -> StageFailed:
    """The error to raise for *error*; the cause is that of the subtask, if one declined.

    Of *chain* the stage is named that declined or that raised; the first one, where a worker died.
    """
    run, said = _failed(chain, error)
    stage = run.node.uid
    noticed = cause_of(error)
    cause = noticed if said is None else root_cause(said)
    what = _reading(run)
    over = f" over {what}" if what else ""
    return StageFailed(
        f"stage {stage!r} failed{over}: {cause}",
        stage=stage,
        cause=str(cause),
        is_transient=noticed.is_transient or _LOST in str(cause),
        is_declined=said is not None,
    )


def has_lost_rows(failure: StageFailed) -> bool:
    """Whether Spark gave up because rows that it had lost became others when it computed them again
    and some were read.

    Blocks do that say which execution they are of, or which file their rows are in.
    """
    return _LOST in failure.cause


def _failed(chain: Sequence[StageRun], error: Exception) -> tuple[StageRun, str | None]:
    """The run that failed, and what its subtask said if it declined."""
    runs = {run.node.uid: run for run in chain}
    for one in chain[0].job.answers.declines(chain[0].plan.checkpoint_id):
        run = runs.get(one.subtask.stage)
        if run is not None and run.attempt == one.attempt:
            return run, one.message
    raised = stage_in("".join(traceback.format_exception(error)))
    return runs.get(raised, chain[0]), None


def _reading(run: StageRun) -> str:
    """The records of sources that the stage was reading, or the number of partitions if many."""
    spans: dict[str, tuple[int, int]] = {}
    for source in run.job.pipeline.sources_of(run.node.uid):
        for piece in run.plan.source(source.uid).slices:
            end = piece.first_record + piece.records
            first, last = spans.get(piece.partition, (piece.first_record, end))
            spans[piece.partition] = min(first, piece.first_record), max(last, end)
    if len(spans) > NAMED_PARTITIONS:
        return f"{len(spans)} partitions from {min(spans)} to {max(spans)}"
    # From 1, as editors count lines.
    return ", ".join(f"records {a + 1} to {b} of {name}" for name, (a, b) in spans.items())


def _user_place(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback of *error*, on this machine."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = (code_place(frame.filename, frame.lineno or 0) for frame in frames)
    return next(filter(None, places), "")
