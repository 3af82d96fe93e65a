"""Tables that others change, under random histories: the rows read are always those of a version.

Rows of a Delta or Iceberg table are appended, updated, merged, deleted and overwritten, files are
compacted, columns are added, versions restored, also while an epoch reads.  Checkpoints complete,
fail and are repeated; jobs are restored backwards, from checkpoints and savepoints, with another
parallelism.  Who reads what a plan says, twice, and adds it up, has at each checkpoint the rows
that a plain reader of the table sees in the version of the position.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Delta
from deltalake import write_deltalake
from pyiceberg.types import DoubleType

from sluice.connectors.appended import BASE
from sluice.connectors.delta import source as delta
from sluice.connectors.iceberg import source as iceberg
from sluice.coordinator.backfill import plan_backfill
from sluice.core.plan import CheckpointPlan
from sluice.declaration.places import WEIGHT, SourcePosition, SourceSpec
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.places import open_source_at
from sluice.sources import DeltaTable, IcebergTable
from sluice.store.open import StoreLocation
from tests.examples import IS_CHECK, TIMES
from tests.iceberg_catalog import (
    TABLE,
    a_table,
    compact,
    delete_places,
    loaded,
    places_of,
    properties,
)
from tests.planted import Fault
from tests.property.coordinator.absorbing import AbsorbingJob

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")

COLUMNS = ("id", "v", "part", "extra")
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("part", pa.string())])
STEPS = 20


def some_rows(random: Random, *, has_extra: bool) -> pa.Table:
    rows = [
        {
            "id": random.randrange(8),
            "v": random.choice(["a", "b", None]),
            "part": random.choice(["x", "y z", "", None]),
        }
        for _ in range(random.randint(1, 5))
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    if has_extra:
        table = table.append_column("extra", pa.array([1.5] * len(rows)))
    return table


class DeltaPlayed:
    """A Delta table, whose *feeds* say whether it writes a change data feed."""

    mark = delta.VERSIONS

    def __init__(self, random: Random, folder: Path, *, feeds: bool) -> None:
        self.random, self.place = random, str(folder / "sales")
        self.is_partitioned = random.random() < 0.4
        self.has_extra = False
        self.start = random.choice(["0", "1", "earliest"])
        self.oldest = 0  # Of the versions with the columns of now.
        Delta.create(
            self.place,
            SCHEMA,
            partition_by=["part"] if self.is_partitioned else None,
            configuration={"delta.enableChangeDataFeed": str(feeds).lower()},
        )
        for _ in range(random.randint(1, 4)):
            self.append()

    def spec(self) -> SourceSpec:
        return DeltaTable(f"file://{self.place}", changes="rows", start=self.start)

    def some_rows(self) -> pa.Table:
        return some_rows(self.random, has_extra=self.has_extra)

    def append(self) -> None:
        write_deltalake(self.place, self.some_rows(), mode="append")

    def change(self) -> None:
        table, key = Delta(self.place), self.random.randrange(8)
        match self.random.randrange(9):
            case 0 | 1:
                self.append()
            case 2:
                table.update(updates={"v": "'u'"}, predicate=f"id = {key}")
            case 3:
                table.delete(f"id >= {key}")
            case 4:
                rows = self.some_rows()
                found = rows.group_by("id").aggregate([])  # One row an id, as MERGE asks.
                source = found.append_column("v", pa.array(["m"] * found.num_rows))
                source = source.append_column("part", pa.array(["x"] * found.num_rows))
                merge = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
                merge.when_matched_update({"v": "s.v"}).when_not_matched_insert(
                    {"id": "s.id", "v": "s.v", "part": "s.part"}
                ).execute()
            case 5:
                write_deltalake(self.place, self.some_rows(), mode="overwrite")
            case 6:
                table.optimize.compact()
            case 7 if not self.has_extra:
                self.has_extra = True
                write_deltalake(self.place, self.some_rows(), mode="append", schema_mode="merge")
                self.oldest = table.version() + 1
            case _ if self.oldest < table.version():
                table.restore(self.random.randrange(self.oldest, table.version()))
            case _:
                self.append()

    def rows_at(self, position: SourcePosition) -> Counter[Any] | None:
        """The rows of the version that was read to its end; None if none was."""
        (mark,) = (entry for entry in position if entry.partition == self.mark)
        if mark.version.startswith(BASE):
            return None
        return counted(Delta(self.place, version=mark.offset - 1).to_pyarrow_table().to_pylist())


Played: TypeAlias = "DeltaPlayed | IcebergPlayed"


def counted(rows: Sequence[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(row.get(name) for name in COLUMNS) for row in rows)


class IcebergPlayed:
    """An Iceberg table in a SQL catalog; deletes *in_files* name places in data files."""

    mark = iceberg.SNAPSHOTS

    def __init__(self, random: Random, folder: Path, *, in_files: bool) -> None:
        self.random, self.folder, self.in_files = random, folder, in_files
        self.has_extra = False
        self.start = "earliest"
        a_table(folder, SCHEMA)
        for _ in range(random.randint(1, 4)):
            self.append()
        if random.random() < 0.4:
            self.start = str(random.choice(loaded(folder).snapshots()).snapshot_id)

    def spec(self) -> SourceSpec:
        return IcebergTable(TABLE, properties(self.folder), changes="rows", start=self.start)

    def some_rows(self) -> pa.Table:
        return some_rows(self.random, has_extra=self.has_extra)

    def append(self) -> None:
        loaded(self.folder).append(self.some_rows())

    def change(self) -> None:
        table, key = loaded(self.folder), self.random.randrange(8)
        match self.random.randrange(9):
            case 0 | 1:
                self.append()
            case 2 | 3 if self.in_files:
                self.delete_places(key)
            case 2:
                table.delete(f"id >= {key}")
            case 3:
                table.overwrite(self.some_rows(), f"id = {key}")
            case 4:
                table.overwrite(self.some_rows())
            case 5 | 6:
                compact(table)
            case 7 if not self.has_extra:
                self.has_extra = True
                with table.update_schema() as update:
                    update.add_column("extra", DoubleType())
            case _ if self.in_files:
                self.append()
                self.delete_places(key)
            case _:
                rows = self.some_rows().group_by("id").aggregate([("v", "min"), ("part", "min")])
                rows = rows.rename_columns(["id", "v", "part"])
                table.overwrite(rows, f"id = {rows['id'][0].as_py()}")

    def delete_places(self, key: int) -> None:
        """Delete some rows on reading; places that are deleted already may be named again."""
        places = places_of(loaded(self.folder), "id", key)
        if places:
            chosen = self.random.sample(places, self.random.randint(1, len(places)))
            delete_places(loaded(self.folder), sorted(chosen))

    def rows_at(self, position: SourcePosition) -> Counter[Any] | None:
        """The rows of the snapshot that was read to its end; None if none was."""
        (mark,) = (entry for entry in position if entry.partition == self.mark)
        if not mark.version or mark.version.startswith(BASE):
            return None
        snapshot_id, _, _ = mark.version.partition(" ")
        table = loaded(self.folder).scan(snapshot_id=int(snapshot_id))
        return counted(table.to_arrow().to_pylist())


class World(AbsorbingJob):
    """A job over a table."""

    def __init__(self, random: Random, table: Played) -> None:
        self.table = table
        super().__init__(
            random,
            table.spec(),
            StoreLocation(root=f"memory://{secrets.token_hex(6)}"),
            key="id",
            limit=random.choice([None, 1, 4]),
            changing=0.3,
        )

    def change(self) -> None:
        self.table.change()

    def read(self, plan: CheckpointPlan) -> Counter[Any]:
        (cut,) = plan.sources
        source = open_source_at(self.job, cut, {})
        found: Counter[Any] = Counter()
        for piece in cut.slices:
            rows = [row for batch in source.read(piece) for row in batch.to_pylist()]
            assert len(rows) == piece.records
            for row in rows:
                found[tuple(row.get(name) for name in COLUMNS)] += row[WEIGHT]
        return found

    def checkpoint(self, name: str | None = None) -> bool:
        """Take one; False if there was nothing to read."""
        plan = self.trigger(name)
        if plan is None:
            return False

        def check(rows: Counter[Any]) -> None:
            there = self.table.rows_at(plan.sources[0].position)
            assert there in (None, rows), "the rows are not those of the version"

        self.absorb(plan, name, check)
        return True

    def play(self) -> None:
        for step in range(STEPS):
            act = self.random.random()
            if act < 0.5:
                self.change()
            elif act < 0.8:
                self.checkpoint()
            elif act < 0.88:
                self.checkpoint(f"s{step}")
            else:
                self.restore()
        while self.checkpoint():
            pass
        last = self.job.state().tip
        assert last is not None
        there = self.table.rows_at(self.job.metadata(last).sources[0].position)
        assert self.rows[last] == there, "the rows at the end are not those of the table"


KINDS: dict[str, Callable[[Random, Path], Played]] = {
    "delta": lambda random, folder: DeltaPlayed(random, folder, feeds=False),
    "delta feed": lambda random, folder: DeltaPlayed(random, folder, feeds=True),
    "iceberg, copy on write": lambda random, folder: IcebergPlayed(random, folder, in_files=False),
    "iceberg, merge on read": lambda random, folder: IcebergPlayed(random, folder, in_files=True),
}


@pytest.mark.parametrize("seed", range(TIMES if IS_CHECK else 2 * TIMES))
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_version_whatever_happened(
    tmp_path: Path, kind: str, seed: int
) -> None:
    random = Random(seed)
    World(random, KINDS[kind](random, tmp_path)).play()


def test_what_the_root_keeps_no_copy_of_is_not_read_again(tmp_path: Path) -> None:
    random = Random(0)
    world = World(random, DeltaPlayed(random, tmp_path, feeds=False))
    while world.checkpoint():
        pass

    with pytest.raises(ConfigurationError, match="no source of 'absorbing' declares input that is"):
        plan_backfill(world.job, ["dt=2026-03-01"])


CHANGES = "connectors.iceberg.source"
VERSIONS = "connectors.delta.source:Versions"
KINDS_OF = {CHANGES: "iceberg, merge on read"}
PLANTED = [
    Fault(
        "a removed file's rows stay",
        f"{VERSIONS}.files",
        'self._listed(step, removed, "delete") +',
        "",
    ),
    Fault("a compaction brings rows", f"{VERSIONS}.files", 'get("dataChange")', 'get("path")'),
    Fault(
        "the row before an update stays",
        "connectors.delta.source:_weights",
        "WEIGHTS.get(one)",
        "WEIGHTS['delete' if one == 'delete' else 'insert']",
    ),
    Fault(
        "rows of a removed file stay",
        f"{CHANGES}:changed_files",
        "if path not in are:",
        "if False:",
    ),
    Fault(
        "places that a delete file names stay",
        f"{CHANGES}:changed_files",
        "for did in (DELETED, BACK)",
        "for did in (BACK,)",
    ),
    Fault(
        "an epoch ends amid a version",
        "connectors.appended:AppendedSource._cut",
        "self.takes_rows_back and not step.is_base",
        "False",
    ),
]


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.wrong)
def test_a_planted_fault_is_found(tmp_path: Path, fault: Fault) -> None:
    with fault.planted():
        for seed in range(20):
            kind = KINDS_OF.get(
                fault.place.partition(":")[0], "delta feed" if seed % 2 else "delta"
            )
            folder = tmp_path / str(seed)
            folder.mkdir()
            random = Random(seed)
            try:
                World(random, KINDS[kind](random, folder)).play()
            except (AssertionError, SluiceError):
                return
    pytest.fail("20 histories did not find it")
