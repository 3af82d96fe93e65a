"""A place outside in this process's memory: rows and a time line that change in one step.

As strict as a database: what it lacks it cannot bring back, and who comes late is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.staged_sink import EpochRows, StagedSink
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.declaration.params import Param
from sluice.declaration.places import RollBack
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation, open_store


@dataclass
class Place:
    """``rows`` are by the checkpoint that published them."""

    timeline: Timeline = field(default_factory=Timeline)
    rows: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    lock: Lock = field(default_factory=Lock)

    @property
    def records(self) -> list[int]:
        return sorted(record for rows in self.rows.values() for record in rows)


_PLACES: dict[str, Place] = {}


@dataclass(frozen=True, slots=True)
class NotedTable:
    """The spec and the target in one: both are a name."""

    name: str = field(default_factory=lambda: secrets.token_hex(4))
    rolls_back: RollBack = RollBack.ON_REQUEST
    upsert_key: tuple[str, ...] = ()
    changelog: bool = True
    params: tuple[Param, ...] = ()

    def open(self, uid: str, _: Mapping[str, str], default: StoreLocation) -> StagedSink:
        return StagedSink(StagedFiles(uid, open_store(default)), self)

    @property
    def place(self) -> Place:
        return _PLACES.setdefault(self.name, Place())

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        if "record" not in schema.names:
            raise ConfigurationError("the noted table keeps the column record")

    def check_rows(self, rows: pa.Table) -> None:
        pass

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        records = [row["record"] for table in rows.upserts() for row in table.to_pylist()]
        with self._transaction() as place:
            after = place.timeline.publishing(writer, checkpoint_id, parent)
            if after is not None:
                place.timeline = after
                place.rows[checkpoint_id] = records

    def timeline(self) -> Timeline:
        return self.place.timeline

    def is_empty(self) -> bool:
        return not self.place.records

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        with self._transaction() as place:
            after = place.timeline.recovered(writer, recovery)
            if after is None:
                return
            doomed = [*place.timeline.after(recovery.version)] if recovery.roll_back else []
            if doomed and self.rolls_back is RollBack.NEVER:
                raise ConfigurationError("the noted table cannot be rolled back")
            place.timeline = after
            for checkpoint_id in doomed:
                place.rows.pop(checkpoint_id)

    def describe(self, version: int) -> str:
        return f"note {version}"

    @contextmanager
    def _transaction(self) -> Iterator[Place]:
        with self.place.lock:
            yield self.place
