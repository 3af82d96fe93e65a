"""Input that is replaced, under random histories: the rows are always those of the files there.

Files of a folder are written, overwritten, rewritten under their names, touched and deleted, also
while an epoch reads them.  Checkpoints complete, fail and are repeated; jobs are restored
backwards, from checkpoints and savepoints, with another parallelism; garbage is collected.  Who
reads what a plan says, twice, and adds it up, has at each checkpoint the rows of the files as its
plan saw them.
"""

from __future__ import annotations

import io
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import FileSource
from sluice.coordinator.backfill import plan_backfill
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.core.completed import CheckpointMetadata
from sluice.core.plan import CheckpointPlan, PartitionOffset
from sluice.declaration.places import WEIGHT
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.places import open_source_at
from sluice.sources import Files
from sluice.store.open import StoreLocation, open_store
from tests.examples import TIMES
from tests.property.coordinator.absorbing import AbsorbingJob

FOLDERS = ("dt=2026-03-01", "dt=2026-03-02", "dt=2026-03-03")
STEPS = 25


class World(AbsorbingJob):
    """A job over a folder."""

    def __init__(self, random: Random) -> None:
        place = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
        self.kind = random.choice(["parquet", "text"])
        self.store = open_store(place.below("sales"))
        self.files: dict[str, tuple[int, ...]] = {}
        self.limit = random.choice([None, None, 4])
        super().__init__(
            random,
            Files(f"{place.root}/sales/", self.kind, bounded=False, replaced="by partition"),  # type: ignore[arg-type]
            place.below("root"),
            key="n" if self.kind == "parquet" else "line",
            limit=self.limit,
            changing=0.4,
        )

    def write(self, name: str, numbers: tuple[int, ...]) -> None:
        body = io.BytesIO()
        if self.kind == "parquet":
            pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), body)
        else:
            body.write("".join(f"{number:04}\n" for number in numbers).encode())
        self.store.put(name, body.getvalue())
        self.files[name] = numbers

    def delete(self, names: list[str]) -> None:
        self.store.delete(names)
        for name in names:
            del self.files[name]

    def some_rows(self) -> tuple[int, ...]:
        return tuple(self.random.randrange(30) for _ in range(self.random.randint(0, 4)))

    def change(self) -> None:
        random, folder = self.random, self.random.choice(FOLDERS)
        there = [name for name in self.files if name.startswith(folder)]
        act = random.choice(
            ["add", "overwrite", "rewrite", "same size", "touch", "drop", "drop all"]
        )
        if act == "overwrite" and there:
            self.delete(there)
        if act in {"add", "overwrite"}:
            for _ in range(random.randint(1, 2)):
                self.write(f"{folder}/part-{random.randrange(10**6)}", self.some_rows())
        elif act == "drop all":
            self.delete(there)
        elif there:
            name = random.choice(there)
            if act == "drop":
                self.delete([name])
            elif act == "rewrite":
                self.write(name, self.some_rows())
            elif act == "same size":
                self.write(name, tuple(random.randrange(30) for _ in self.files[name]))
            else:
                self.write(name, self.files[name])

    def there(self) -> Counter[object]:
        numbers = Counter(number for of in self.files.values() for number in of)
        if self.kind == "parquet":
            return Counter(numbers)
        return Counter({f"{number:04}": copies for number, copies in numbers.items()})

    def read(self, plan: CheckpointPlan) -> Counter[object]:
        (cut,) = plan.sources
        source = open_source_at(self.job, cut, {})
        found: Counter[object] = Counter()
        for piece in cut.slices:
            for batch in source.read(piece):
                weights = batch.column(WEIGHT).to_pylist()
                for value, weight in zip(batch.column(0).to_pylist(), weights, strict=True):
                    found[value] += weight
        return found

    def checkpoint(self, name: str | None = None) -> bool:
        """Take one; False if there was nothing to read."""
        again = self.random.choice(FOLDERS)
        is_backfill = name is None and self.random.random() < 0.2 and self.asks_for(again)
        there = self.there()
        plan = self.trigger(name)
        if plan is None:
            return False
        if is_backfill:
            assert {piece.partition.partition("/")[0] for piece in plan.sources[0].slices} == {
                again
            }, "a backfill reads what it names, and nothing else"

        def check(rows: Counter[object]) -> None:
            if self.limit is None and not is_backfill:
                assert rows == there, "the rows are not those of the files"

        self.absorb(plan, name, check)
        return True

    def asks_for(self, folder: str) -> bool:
        """Ask for a backfill of *folder*; False if there is nothing to read again."""
        try:
            plan_backfill(self.job, [folder])
        except ConfigurationError:
            return False
        request_checkpoint(self.job, UserRequest(by="a test", again=(folder,)))
        return True

    def play(self) -> None:
        for step in range(STEPS):
            act = self.random.random()
            if act < 0.45:
                self.change()
            elif act < 0.8:
                self.checkpoint()
            elif act < 0.87:
                self.checkpoint(f"s{step}")
            elif act < 0.95:
                self.restore()
            else:
                collect_garbage(self.job, grace_ms=0)
        while self.checkpoint() or self.checkpoint():  # A backfill leaves the rest unread.
            pass
        last = self.job.state().tip
        assert self.rows[last] == self.there(), "the rows at the end are not those of the files"


@pytest.mark.parametrize("seed", range(40 * TIMES))
def test_rows_are_those_of_the_files_that_are_there_whatever_happened(seed: int) -> None:
    World(Random(seed)).play()


def by_name(self: FileSource[Any], before: PartitionOffset, file: Any) -> PartitionOffset | None:
    return before


OPENED = ParquetSource._opened  # noqa: SLF001


def from_the_file_of_today(self: ParquetSource, piece: Any) -> Any:
    file = self._files.find(piece.partition)
    if file is None or not piece.is_taken_back:
        return OPENED(self, piece)
    return nullcontext(self._file(file))


def remembering_all(
    self: FileSource[Any],
    before: dict[str, PartitionOffset],
    now: dict[str, PartitionOffset],
) -> dict[str, PartitionOffset]:
    return {name: entry for name, entry in before.items() if name not in now}


def without_copies(self: CheckpointMetadata) -> tuple[Any, ...]:
    files: Callable[[CheckpointMetadata], tuple[Any, ...]] = OF_METADATA
    (cut,) = self.sources
    return tuple(one for one in files(self) if one not in cut.copies.values())


OF_METADATA: Any = CheckpointMetadata.__dict__["files"].fget

PLANTED: dict[str, tuple[type, str, object]] = {
    "a version is known by its name": (FileSource, "_same", by_name),
    "-1 is read of the file of today": (ParquetSource, "_opened", from_the_file_of_today),
    "a file is taken back again and again": (FileSource, "_remembered", remembering_all),
    "a copy is deleted with its checkpoint": (
        CheckpointMetadata,
        "files",
        property(without_copies),
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[fault])

    for seed in range(60):
        try:
            World(Random(seed)).play()
        except (AssertionError, SluiceError, OSError):
            return
    pytest.fail("60 histories did not find it")
