"""A table in a place outside: rows and a time line that change in one transaction.

As strict as one: what it lacks it cannot bring back, and who comes late is refused.  Its network is
as bad as the bucket's: a transaction may be lost, be done without an answer, or be done later, when
its sender was left behind long ago.  ``Readers`` sees every change at the moment it becomes true.

People change it, too: they put it back behind its note, another job takes it over and the job takes
it back, and the sink is declared for another table (``people``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import EpochRows, StagedSink
from sluice.core.answers import Committable
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.declaration.params import Param
from sluice.declaration.places import RollBack
from sluice.errors import ProtocolViolation, SluiceError, StoreUnavailable
from sluice.protocol.records import checksum
from sluice.store.open import StoreLocation
from tests.simulation.bucket import UnderWay, mishap
from tests.simulation.dataflow import COLUMNS, Row, rows_of
from tests.simulation.script import Fate

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.simulation.world import World

NOTED = "noted"
PLAYING: dict[int, World] = {}  # The world that plays, at 0.


@dataclass(frozen=True, slots=True)
class Place:
    """``rows`` are by the checkpoint that published them; a change makes another one.

    ``timeline`` is the note as it was written; ``shown`` is what it is worth beside the rows.
    """

    timeline: Timeline = field(default_factory=Timeline)
    rows: Mapping[int, tuple[Row, ...]] = field(default_factory=dict[int, tuple[Row, ...]])

    @property
    def shown(self) -> Timeline:
        if {*self.timeline.after(None)} <= self.rows.keys():
            return self.timeline
        return self.timeline.showing(self.rows)

    def noting(self, timeline: Timeline, rows: Mapping[int, tuple[Row, ...]]) -> Place:
        """The place after a transaction; what a person accepted as missing is there, and empty."""
        return Place(timeline, {**dict.fromkeys(timeline.after(None), ()), **rows})


def pointed_elsewhere(here: Place, elsewhere: Place) -> tuple[Place, Place]:
    """The table that a sink finds when it is declared for another one, and that which it left."""
    return elsewhere, here


@dataclass(frozen=True, slots=True)
class NotedSpec:
    """The declared sink of the simulated place."""

    upsert_key: tuple[str, ...] = ()
    changelog: bool = True
    params: tuple[Param, ...] = ()

    def open(self, uid: str, _: Mapping[str, str], default: StoreLocation) -> StagedSink:
        world = PLAYING[0]
        return StagedSink(StagedFiles(uid, world.open_store(default)), NotedTarget(world))


@dataclass(frozen=True, slots=True)
class NotedTarget:
    world: World
    rolls_back: RollBack = RollBack.ON_REQUEST

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        assert schema.names == ["kind", *COLUMNS.names]  # It writes the changelog.
        self._read("check")

    def check_rows(self, rows: pa.Table) -> None:
        pass

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        said: list[Row] = []
        damage: list[ProtocolViolation] = []
        for one in rows.staged:
            try:
                said += _read(rows.files, one)
            except ProtocolViolation as error:
                damage.append(error)

        def transaction() -> None:
            place = self.world.place
            after = place.shown.publishing(writer, checkpoint_id, parent)
            if after is None:
                return  # It shows the rows, and does not ask for them.
            if damage:
                raise damage[0]
            self._backs_up()
            self.world.readers.published(writer, checkpoint_id, parent, tuple(said))
            self.world.place = place.noting(after, {**place.rows, checkpoint_id: tuple(said)})

        self._write("publish", transaction)

    def timeline(self) -> Timeline:
        self._read("timeline")
        return self.world.place.shown

    def is_empty(self) -> bool:
        self._read("is_empty")
        return not any(self.world.place.rows.values())

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        def transaction() -> None:
            place = self.world.place
            after = place.shown.recovered(writer, recovery)
            if after is None:
                return
            self._backs_up()
            doomed = {*place.shown.after(recovery.version)} if recovery.roll_back else set()
            self.world.readers.recovered(writer, recovery, doomed)
            rows = {one: said for one, said in place.rows.items() if one not in doomed}
            self.world.place = place.noting(after, rows)

        if self.world.sleeps_in_recover and self.world.has_faults:
            self.world.sleeps_in_recover = False
            self.world.at_the_place.append(UnderWay("a late recover", _unheard(transaction)))
            raise StoreUnavailable("whoever recovers the place sleeps")
        self._write("recover", transaction)

    def describe(self, version: int) -> str:
        return f"note {version}"

    def _backs_up(self) -> None:
        self.world.backups.append((self.world.place, self.world.readers.seen))

    def _read(self, what: str) -> None:
        fate = self.world.befalls(is_write=False)
        if fate is not None:
            self.world.note(f"{what} of the place: {fate.value}")
            raise mishap(fate)

    def _write(self, what: str, transaction: Callable[[], None]) -> None:
        fate = self.world.befalls(is_write=True)
        if fate is None:
            transaction()
            return
        self.world.note(f"{what} at the place: {fate.value}")
        if fate in (Fate.UNDER_WAY, Fate.DIES_UNDER_WAY):
            self.world.at_the_place.append(UnderWay(f"{what} at the place", _unheard(transaction)))
        elif fate in (Fate.ANSWER_LOST, Fate.DIES_AFTER):
            _unheard(transaction)()
        raise mishap(fate)


def _read(files: StagedFiles, staged: Committable) -> tuple[Row, ...]:
    body = files.store.get(staged.file)
    if body is None:
        raise ProtocolViolation(f"{staged.file} is missing")
    if checksum(body) != staged.checksum:
        raise ProtocolViolation(f"{staged.file} is damaged")
    return rows_of(body)


def _unheard(transaction: Callable[[], None]) -> Callable[[], None]:
    """A transaction whose refusal is not reported."""

    def unheard() -> None:
        with suppress(SluiceError):
            transaction()

    return unheard
