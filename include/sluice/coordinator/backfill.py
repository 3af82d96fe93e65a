"""The plan of a backfill: the files and rows that it takes back and reads, and who gets them.

The request itself is one for a checkpoint (``coordinator/requests.py``), whose plan reads *again*
what it names (``coordinator/planning.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluice.coordinator.planning import cut_again
from sluice.coordinator.requests import require_running
from sluice.core.plan import SourceCut
from sluice.job.job import Job
from sluice.job.lineage import lineage_of_tip


class ReadAgain(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a backfill that is of one source."""

    source: str
    files_taken_back: int
    rows_taken_back: int
    files: int
    rows: int


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``stages`` get the rows, those behind other stages included."""

    sources: tuple[ReadAgain, ...]
    stages: tuple[str, ...]


def plan_backfill(job: Job, words: Sequence[str]) -> BackfillPlan:
    """The plan of a backfill of *words* as of now; nothing is written.

    Raises:
        ConfigurationError: the job does not run, or *words* choose nothing that may be replaced.
    """
    state = job.state()
    require_running(job, state)
    cuts = cut_again(job, state, lineage_of_tip(job, state), words, shares_files=True)
    read = [cut for cut in cuts if cut.slices]
    reached = {cut.uid for cut in read}
    stages = []
    for uid, stage in job.pipeline.stages.items():  # In the order in which they were declared.
        if not reached.isdisjoint(stage.producers):
            reached.add(uid)
            stages.append(uid)
    return BackfillPlan(sources=tuple(map(_of_source, read)), stages=tuple(stages))


def _of_source(cut: SourceCut) -> ReadAgain:
    back = [piece for piece in cut.slices if piece.is_taken_back]
    new = [piece for piece in cut.slices if not piece.is_taken_back]
    return ReadAgain(
        source=cut.uid,
        files_taken_back=len({piece.partition for piece in back}),
        rows_taken_back=sum(piece.records for piece in back),
        files=len({piece.partition for piece in new}),
        rows=sum(piece.records for piece in new),
    )
