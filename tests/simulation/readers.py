"""Invariant 11: what readers see in a table is what the job continues, or the call said otherwise.

``Readers`` shares no idea with the time line: it knows which checkpoint's rows are there, and which
version the job was told last that it continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.jobs import SINK
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.state import CoordinatorState
from sluice.core.timeline import Recovery, Writer
from sluice.job.places import open_sinks
from tests.simulation.broken import Broken
from tests.simulation.dataflow import Row, pure, reference

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Seen:
    """``continued`` is the version that the next commit has to continue; a person was ``told`` of
    rows that come again.  ``other`` is the sink of another job that has taken the table over.
    ``behind`` is the version that the job went on behind when it took the table over: where that
    is an earlier life's, what this one read begins anew.
    """

    visible: frozenset[int] = frozenset()
    continued: int | None = None
    life: str = ""
    generation: int = 0
    told: bool = False
    other: str = ""
    behind: int | None = None


@dataclass(slots=True)
class Readers:
    world: World
    seen: Seen = field(default_factory=Seen)
    has_lost_rows: bool = False  # Ever.
    own: set[int] = field(default_factory=set[int])  # Published in this life of the bucket.
    # What each of the job's commits continued.
    parents: dict[int, int | None] = field(default_factory=dict[int, int | None])

    def published(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: Iterable[Row]
    ) -> None:
        seen, witness = self.seen, self.world.witness
        if seen.other:
            raise Broken(11, "published to a table that another job has taken over", seen.other)
        self._is_not_fenced(writer)
        if writer.life == seen.life and checkpoint_id in seen.visible:
            raise Broken(5, "published twice", f"{checkpoint_id}")
        if writer.life in witness.lives:
            if witness.ended.get(checkpoint_id) != "completed":
                raise Broken(5, "published before it is completed", f"{checkpoint_id}")
            if parent != seen.continued:
                what = "a commit continues another version than readers see"
                raise Broken(11, what, f"{checkpoint_id} after {parent}, not {seen.continued}")
            self._is_right(checkpoint_id, parent, rows)
            self.own.add(checkpoint_id)
            self.parents[checkpoint_id] = parent
        self.seen = replace(
            seen,
            visible=seen.visible | {checkpoint_id},
            continued=checkpoint_id,
            life=writer.life,
            generation=max(writer.generation, seen.generation * (writer.life == seen.life)),
        )

    def recovered(self, writer: Writer, recovery: Recovery, doomed: Collection[int]) -> None:
        """*doomed* are the checkpoints whose rows go away with it."""
        seen, witness, version = self.seen, self.world.witness, recovery.version
        # What a restore continues before anybody recovered the place, the submission's consent too.
        before = seen.generation if seen.life == writer.life else 0
        generations = range(before + 1, writer.generation + 1)
        takes_over = any((writer.life, one) in witness.takes_over for one in generations)
        is_told = takes_over or recovery.roll_back or recovery.accepts
        is_told |= not any(self.world.place.rows.values())
        if seen.other and not is_told:
            raise Broken(11, "a table of another job was taken over without a word", seen.other)
        self._is_not_fenced(writer)
        if version is not None and version not in seen.visible and not self._accepts:
            raise Broken(11, "the job continues what readers do not see", f"{version}")
        visible = seen.visible.difference(doomed)
        self.has_lost_rows |= bool(doomed)
        is_ahead = any(one > (version or 0) for one in visible)
        self.seen = Seen(
            visible=visible,
            continued=version,
            life=writer.life,
            generation=writer.generation,
            told=bool(visible) and (seen.told or is_ahead or takes_over),
            behind=version if takes_over else seen.behind,
        )

    def was_taken_over(self, sink: str) -> None:
        """A person has another job go on behind the rows: its own come in between."""
        self.seen = replace(self.seen, other=sink, told=True)

    def published_by_another(self, sink: str, checkpoint_id: int) -> None:
        if self.seen.other != sink:
            raise Broken(11, "another job publishes to a table that was taken from it", sink)
        self.seen = replace(self.seen, visible=self.seen.visible | {checkpoint_id})

    def was_cut(self, kept: Collection[int]) -> None:
        """Somebody has put the table back to the checkpoints *kept*, and nobody was asked."""
        self.has_lost_rows = True
        visible = self.seen.visible.intersection(kept)
        continued = self.seen.continued
        while continued is not None and continued not in visible:
            before = max((one for one in visible if one < continued), default=None)
            continued = self.parents.get(continued, before)
        self.seen = replace(self.seen, visible=visible, continued=continued)

    def was_told_rolled_back(self, state: CoordinatorState) -> None:
        """After a restore that led to *state*, every table shows exactly what the job continues."""
        head = self.world.witness.head
        if state.generation != head.generation or head.table_recovery or head.tables is None:
            return
        table = open_sinks(self.world.job, head.configuration.params)[SINK]
        assert isinstance(table, ManifestTable)
        with self.world.in_peace(0):
            newest = [one.checkpoint_id for one in table.chain()[-1:]]
        if newest != [one for one in (head.tables.get(SINK),) if one is not None]:
            raise Broken(11, "rolled back, and readers see something else", f"{newest}")

    def was_put_back(self, seen: Seen) -> None:
        """Where the same rows are shown, the job goes on continuing what it does."""
        self.has_lost_rows = True
        is_same = seen.visible == self.seen.visible
        self.seen = replace(
            seen,
            continued=(self.seen if is_same else seen).continued,
            told=seen.told or self.seen.told,
        )

    def was_told_committed(self, checkpoint_id: int) -> None:
        """An epoch that is journaled as committed is visible to readers."""
        if checkpoint_id not in self.own:
            raise Broken(11, "committed, and readers do not see it", f"{checkpoint_id}")

    def at_the_end(self) -> None:
        """Every record once, unless a person was told otherwise."""
        witness, seen = self.world.witness, self.seen
        base = witness.head.base
        if base is None or self._accepts or seen.told:
            return
        rows = [row for said in self.world.place.rows.values() for row in said]
        if pure(rows) != reference(len(self.world.stages) - 1, witness.consumed[base]):
            raise Broken(11, "readers see other rows than the job continues", f"{base}")

    @property
    def _accepts(self) -> bool:
        """A person took rows that are missing, or another life's; the journal knows it, even where
        its recovery never came to the place.
        """
        return self.world.witness.accepts

    def _is_not_fenced(self, writer: Writer) -> None:
        if writer.life == self.seen.life and writer.generation < self.seen.generation:
            raise Broken(10, "a fenced generation changed a table", f"{writer}, not {self.seen}")

    def _is_right(self, checkpoint_id: int, parent: int | None, rows: Iterable[Row]) -> None:
        witness = self.world.witness
        metadata = witness.metadata[checkpoint_id]
        start = witness.consumed.get(metadata.parent or 0, 0)
        end = witness.consumed[checkpoint_id]
        if pure(rows) != reference(len(metadata.stages) - 1, end)[start:]:
            raise Broken(8, "an epoch's output is not that without failures", f"{checkpoint_id}")
        shown = witness.consumed.get(parent or 0, 0)
        is_behind_others = parent is not None and parent == self.seen.behind
        if shown != start and not (self._accepts or is_behind_others):
            raise Broken(11, "rows are missing in between", f"{checkpoint_id} after {parent}")
