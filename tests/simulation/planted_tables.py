"""Planted faults: readers see something else than the job continues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.connectors.staged_files import MANIFESTS, LogEntryName, fence_key, name_of
from sluice.coordinator.restore_plan import damage_of_owed_rows
from sluice.coordinator.tables import compare_tables_to_restore, compare_tables_to_submit
from sluice.core.tables import TableComparison
from sluice.core.timeline import Recovery, Timeline, Writer
from tests.simulation.planting import mutation
from tests.simulation.play import a_new_life, replace_everywhere


@mutation(11)
def go_forward_over_a_hole(patch: pytest.MonkeyPatch) -> None:
    """A restore continues a version whose rows an earlier one has rolled back."""
    recovered = Timeline.recovered

    def unasked(self: Timeline, writer: Writer, recovery: Recovery) -> Timeline | None:
        return recovered(self, writer, replace(recovery, accepts=True))

    patch.setattr(Timeline, "recovered", unasked)
    patch.setattr(TableComparison, "problem", lambda *_, **__: None)


@mutation(0, 11)
def take_an_old_note_for_ones_own(patch: pytest.MonkeyPatch) -> None:
    """Over an emptied root ids begin at 1, and the notes of an earlier life say they are there."""
    replace_everywhere(patch, a_new_life, lambda: "always the same")
    patch.setattr(Timeline, "_require_generation", lambda *_: None)
    replace_everywhere(patch, compare_tables_to_submit, lambda *_: ())
    replace_everywhere(patch, compare_tables_to_restore, lambda *_: ())


@mutation(10)
def wake_up_and_roll_back(patch: pytest.MonkeyPatch) -> None:
    """A restore that was suspended in its roll back goes on after a later one."""
    patch.setattr(Timeline, "_require_generation", lambda *_: None)


@mutation(0)
def fence_what_is_owed(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was left behind before its commit is restored, and cannot be published."""
    recovered = Timeline.recovered

    def unowed(self: Timeline, writer: Writer, recovery: Recovery) -> Timeline | None:
        return recovered(self, writer, replace(recovery, continues=None))

    patch.setattr(Timeline, "recovered", unowed)


@mutation(0, 11)
def sort_fences_by_version(patch: pytest.MonkeyPatch) -> None:
    """A second roll back of a table of files is a fence that sorts before the first."""

    def key(through: int, generation: int, shown: int | None) -> str:
        return f"{MANIFESTS}{through:020d}_{shown or 0:010d}_{generation:010d}.json"

    def named(key: str) -> LogEntryName | None:
        found = name_of(key)
        if found is None or not found.is_fence:
            return found
        return replace(found, shown=found.generation or None, generation=found.shown or 0)

    replace_everywhere(patch, fence_key, key)
    replace_everywhere(patch, name_of, named)


@mutation(11)
def publish_over_a_hole(patch: pytest.MonkeyPatch) -> None:
    """A commit does not ask whether readers see what it continues: a database was put back."""
    publishing = Timeline.publishing

    def unasked(
        self: Timeline, writer: Writer, checkpoint_id: int, parent: int | None
    ) -> Timeline | None:
        return publishing(self, writer, checkpoint_id, None)

    patch.setattr(Timeline, "publishing", unasked)


@mutation(11)
def publish_beside_what_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A database was put back to before a roll back, and shows its rows again."""
    publishing = Timeline.publishing

    def unaware(
        self: Timeline, writer: Writer, checkpoint_id: int, parent: int | None
    ) -> Timeline | None:
        return publishing(self, replace(writer, recovered_by=0), checkpoint_id, parent)

    patch.setattr(Timeline, "publishing", unaware)


@mutation(0)
def try_a_damaged_commit_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Rows whose commit is owed are never compared, so that no restart passes them over."""
    replace_everywhere(patch, damage_of_owed_rows, lambda *_: [])
