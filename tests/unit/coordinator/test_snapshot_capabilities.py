"""The table of docs/explanation/semantics.md, what each kind of snapshot can do, cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import STAGES, a_job, a_pipeline, a_running_job
from sluice.coordinator.restore import RestoreRequest, foreign_target, resolve, restore, stop
from sluice.coordinator.submission import configure
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import ClaimMode, JobStatus, Retention
from sluice.core.ids import CheckpointId
from sluice.core.restoring import RestoreOptions
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from tests.begun import begun, copied
from tests.subtasks import a_savepoint, in_flight_records, state_records, take_checkpoint

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "semantics.md"
HEADING = "## What each kind of snapshot can do"
COUNT, RANK = STAGES
NO_OPTIONS = RestoreOptions()
DROP = RestoreOptions(allow_non_restored_state=True)
CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)
RECORDS = 30  # Before the snapshot, which is the third checkpoint; ten come with the next one.

KINDS: dict[str, dict[str, bool]] = {
    "aligned checkpoint": {},
    "unaligned checkpoint": {"unaligned": True},
    "native savepoint": {"is_canonical": False},
    "canonical savepoint": {"is_canonical": True},
}


@dataclass(frozen=True)
class Taken:
    """A snapshot of a job that goes on; ``name`` is that of a savepoint."""

    job: Job
    checkpoint_id: CheckpointId
    name: str | None
    checkpointing: dict[str, Any]

    @property
    def metadata(self) -> CheckpointMetadata:
        if self.name is None:
            return self.job.metadata(self.checkpoint_id)
        return self.job.savepoint_metadata(self.name)

    @property
    def folder(self) -> str:
        paths = self.job.paths
        return paths.checkpoint(self.checkpoint_id) if not self.name else paths.savepoint(self.name)

    def changed(self, *stages: str) -> Job:
        """The job, as a process sees it whose declaration has other stages."""
        return replace(self.job, pipeline=a_pipeline(stages=stages, **self.checkpointing))

    def request(self, **given: Any) -> RestoreRequest:
        named = {"savepoint": self.name} if self.name else {"checkpoint": self.checkpoint_id}
        return RestoreRequest(**named | given)


def taken(kind: str, **checkpointing: Any) -> Taken:
    form = KINDS[kind]
    checkpointing |= {name: value for name, value in form.items() if name == "unaligned"}
    name = "mine" if "is_canonical" in form else None
    return Taken(after_three(kind=kind, **checkpointing), CheckpointId(3), name, checkpointing)


@begun
def after_three(*, kind: str, **checkpointing: Any) -> Job:
    job = a_running_job(a_pipeline(**checkpointing))
    take_checkpoint(job)
    take_checkpoint(job)
    if "is_canonical" in KINDS[kind]:
        a_savepoint(job, "mine", **KINDS[kind])
    else:
        take_checkpoint(job)
    return job


def goes_on(job: Job, request: RestoreRequest, *stages: str) -> bool:
    """Whether the job is restored as asked, and has each record once in the state of *stages*, or
    in flight to them, behind its next checkpoint.
    """
    resolved = resolve(job, job.state(), request)
    restore(job, resolved.target, resolved.options, configuration=resolved.configuration)
    metadata = job.metadata(take_checkpoint(job))
    for stage in stages or STAGES:
        records = state_records(job, metadata, stage) + in_flight_records(job, metadata, stage)
        assert sorted(records) == list(range(RECORDS + 10)), stage
    return True


def elsewhere(snapshot: Taken, root: str) -> bool:
    """Whether a job of a new root goes on from the snapshot where it lies below *root*."""
    job = a_job(snapshot.job.pipeline)
    where = {"savepoint": snapshot.name} if snapshot.name else {}
    here = foreign_target(job, root, checkpoint_id=snapshot.checkpoint_id, **where)
    restore(job, here, configuration=configure(job.pipeline, {}))
    return job.metadata(take_checkpoint(job)).origin is not None


def in_its_own_root(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, snapshot.request())


def in_another_root(kind: str) -> bool:
    snapshot = taken(kind)
    return elsewhere(snapshot, snapshot.job.location.root)


def by_its_path(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, RestoreRequest(pointer=f"{snapshot.folder}_metadata"))


def with_another_parallelism(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, snapshot.request(parallelism=("3",)))


def with_a_stage_behind(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.changed(COUNT, RANK, "more"), snapshot.request())


def with_a_stage_between(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.changed(COUNT, "between", RANK), snapshot.request())


def without_a_stage(kind: str) -> bool:
    snapshot = taken(kind)
    with pytest.raises(RestoreError, match="'rank_bids' has state"):
        goes_on(snapshot.changed(COUNT), snapshot.request(), COUNT)
    return goes_on(snapshot.changed(COUNT), snapshot.request(options=DROP), COUNT)


def as_its_folder_alone(kind: str) -> bool:
    snapshot = taken(kind)
    return elsewhere(snapshot, copied(snapshot.job, snapshot.folder).location.root)


def with_its_whole_root(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(copied(snapshot.job), snapshot.request())


def claimed(kind: str) -> bool:
    snapshot = taken(kind)
    goes_on(snapshot.job, snapshot.request(options=CLAIM))
    return snapshot.job.state().claimed_savepoints == (snapshot.name,)


def after_newer_ones_and_the_end(kind: str) -> bool:
    """Each alone would end a checkpoint, so each is asked."""
    newer = taken(kind, num_retained=1)
    take_checkpoint(newer.job)
    ended = taken(kind, externalized_checkpoint_retention=Retention.NEVER_RETAIN_AFTER_TERMINATION)
    stop(ended.job, JobStatus.CANCELED)
    stays = [happens(partial(goes_on, one.job, one.request()), GONE) for one in (newer, ended)]
    assert len({*stays}) == 1
    return all(stays)


def incrementally(kind: str) -> bool:
    snapshot = taken(kind)
    before = {one.key for one in snapshot.job.metadata(CheckpointId(2)).files}
    return any(one.key in before for one in snapshot.metadata.files)


PLAYS: dict[str, Callable[[str], bool]] = {
    "Restored in its own root": in_its_own_root,
    "Restored in another root, read where it lies": in_another_root,
    "Restored by its path": by_its_path,
    "Restored with another parallelism": with_another_parallelism,
    "A new stage behind the others": with_a_stage_behind,
    "A new stage between two others": with_a_stage_between,
    "State of a stage that is gone is dropped, if asked": without_a_stage,
    "Self-contained: its folder alone, copied elsewhere": as_its_folder_alone,
    "Relocatable with its whole root": with_its_whole_root,
    "Given to the job (CLAIM)": claimed,
    "Stays when newer ones come, and when the job ends": after_newer_ones_and_the_end,
    "Incremental: shares files with the one before": incrementally,
}


GONE = "is not retained"
REFUSALS = {
    "A new stage between two others": "'rank_bids' has rows in flight",
    "Self-contained: its folder alone, copied elsewhere": "is missing, expected",
    "Given to the job (CLAIM)": "only a savepoint can be claimed",
}


def happens(play: Callable[[], bool], refusal: str | None) -> bool:
    """Whether it is done; only its own *refusal* says that it cannot be."""
    try:
        return play()
    except (ConfigurationError, RestoreError) as error:
        if refusal is None or refusal not in str(error):
            raise
        return False


def the_table() -> dict[str, dict[str, str]]:
    """The page's cells, by row and kind."""
    lines = PAGE.read_text().split(HEADING)[1].split("\n## ")[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    (_, *kinds), _, *cells = rows
    return {name: dict(zip(kinds, row, strict=True)) for name, *row in cells}


def test_the_page_has_the_kinds_and_the_rows_that_are_played() -> None:
    table = the_table()

    assert [*table] == [*PLAYS]
    assert all([*row] == [*KINDS] for row in table.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", PLAYS)
def test_a_cell_says_what_happens(what: str, kind: str) -> None:
    happened = happens(partial(PLAYS[what], kind), REFUSALS.get(what))

    assert the_table()[what][kind] == ("yes" if happened else "no")


def test_a_stage_goes_between_where_rows_in_flight_may_be_lost() -> None:
    snapshot = taken("unaligned checkpoint")
    assert in_flight_records(snapshot.job, snapshot.metadata, RANK)

    with pytest.raises(RestoreError, match="'rank_bids' has rows in flight"):
        with_a_stage_between("unaligned checkpoint")
    changed = snapshot.changed(COUNT, "between", RANK)
    assert goes_on(changed, snapshot.request(options=DROP), COUNT)
