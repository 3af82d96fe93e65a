"""Blocks: rows that are grouped before they are sent, and inputs that share a pass over slices.

Rows are hashed as groups, and counted as rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from sluice.connectors.files.parquet import ParquetSource
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import Slice, TaskPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Session, Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.errors import StoreUnavailable
from sluice.exchange.blocks import (
    CARRIED_BYTES,
    LOCAL_FOLDERS,
    BlockFile,
    BlockFolder,
    BlockKind,
    BlockLocation,
    ExchangeSpec,
    Owners,
    Received,
    Sender,
    read_block,
    received,
    send,
)
from sluice.exchange.reading import Feed, SourceRows, StreamRows
from sluice.operators.build import build_operator, hashes_groups
from sluice.operators.operator import ROW_COUNT, EpochTime
from sluice.sources import Files
from sluice.state.key_hash import with_hash
from sluice.state.segments import HASH
from sluice.store.open import StoreLocation

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PARALLELISM = 3
TASK = TaskPlan(uid="stage", parallelism=PARALLELISM, max_parallelism=8)
# Everything before the fifth second is late.
_MS = int((START + 5 * SECOND).timestamp() * 1000)
TIME = EpochTime(previous_watermark_ms=_MS, watermark_ms=_MS)

STAGES: dict[str, Callable[[Any], object]] = {
    "sums": lambda rows: rows.aggregate("stage", n=agg.count(), s=agg.sum("v")),
    "values": lambda rows: rows.aggregate("stage", d=agg.count_distinct("v")),
    "windows": lambda rows: rows.window("stage", Tumbling(SECOND), s=agg.sum("v")),
    "sessions": lambda rows: rows.window("stage", Session(SECOND), s=agg.sum("v")),
}


def the_rows(count: int, keys: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "k": [n * 7919 % keys for n in range(count)],
            "name": [None if n % 5 == 0 else f"name {n % keys}" for n in range(count)],
            "v": [n % 11 for n in range(count)],
            "at": [START + n % 10 * SECOND for n in range(count)],
        },
        schema_overrides={"at": pl.Datetime("us", "UTC")},
    )


def a_spec(stage: str, rows: pl.DataFrame, key: str) -> ExchangeSpec:
    pipeline = Pipeline("grouped")
    source = pipeline.source("rows", Files("/nowhere", format="text"), event_time="at")
    STAGES[stage](source.key_by(key))
    node = pipeline.stages["stage"]
    body = schema_of(rows)
    nothing = StreamRows(StoreLocation("memory://grouped"), ((),), body)
    feed = Feed(rows=nothing, schema=body, given=node.inputs[0], hashed=(key,))
    return ExchangeSpec(
        stage=node,
        task=TASK,
        feeds=(feed.narrowed(feed.prepared_schema.names()),),
        epoch_time=TIME,
        pre_aggregates=True,
    )


@pytest.mark.parametrize("key", ["k", "name"])
@pytest.mark.parametrize("stage", STAGES)
def test_groups_are_those_of_rows_that_were_hashed_before(stage: str, key: str) -> None:
    rows = the_rows(200, 9)
    spec = a_spec(stage, rows, key)
    operator = build_operator(spec.stage, [spec.feeds[0].prepared_schema])
    assert hashes_groups(operator)

    of_rows = operator.partial(rows, TIME)
    of_hashed = operator.partial(with_hash(rows, [key]), TIME)

    assert_frame_equal(of_rows.late, of_hashed.late)
    for name, groups in of_hashed.groups.items():
        assert_frame_equal(of_rows.groups[name], groups, check_row_order=False)
    assert of_rows.counted is not None
    assert of_rows.counted[ROW_COUNT].sum() + of_rows.late.height == 200


@pytest.mark.parametrize("stage", STAGES)
def test_every_subtask_hears_how_many_rows_its_groups_were(stage: str) -> None:
    rows = the_rows(200, 9)
    found = sent(a_spec(stage, rows, "k"), rows)

    expected = Owners(TASK).count(with_hash(rows, ["k"]))
    assert [sum(part.input_rows for part in own) for own in found] == list(expected)
    assert {part.kind for own in found for part in own} <= {BlockKind.GROUPS, BlockKind.LATE}


def test_chunks_of_few_rows_per_group_are_sent_as_they_are() -> None:
    """The first is grouped, and shows that it does not help; the other is sent as rows, hashed."""
    first, then = the_rows(60, 50), the_rows(80, 50)
    found = sent(a_spec("sums", first, "k"), first, then)

    rows = [part for own in found for part in own if part.kind is BlockKind.ROWS]
    groups = [part for own in found for part in own if part.kind is BlockKind.GROUPS]
    assert sum(part.input_rows for part in groups) == 60
    assert sum(part.rows.height for part in groups) == 50
    assert sum(part.input_rows for part in rows) == sum(part.rows.height for part in rows) == 80
    together = pl.concat([part.rows for part in rows])
    assert_frame_equal(
        together, with_hash(then, ["k"]).select(together.columns), check_row_order=False
    )


@pytest.mark.parametrize("parallelism", [1, 2, 4, 5, 8])
def test_rows_go_to_the_subtask_that_owns_their_hash(parallelism: int) -> None:
    task = TaskPlan(uid="stage", parallelism=parallelism, max_parallelism=8)
    ranges = [hash_range(8, key_group_range(8, parallelism, n)) for n in range(parallelism)]
    edges = [edge for owned in ranges for edge in owned]
    hashes = [*edges, *np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 100), *edges]
    rows = pl.DataFrame({"n": range(len(hashes)), HASH: pl.Series(hashes, dtype=pl.Int64)})

    parts = Owners(task).split(rows)

    for part, (first, last) in zip(parts, ranges, strict=True):
        assert part["n"].to_list() == [n for n, h in enumerate(hashes) if first <= h <= last]
    assert [part.height for part in parts] == list(Owners(task).count(rows))
    assert [part["n"].sum() for part in parts] == list(Owners(task).count(rows, "n"))


def sent(spec: ExchangeSpec, *chunks: pl.DataFrame) -> list[list[Received]]:
    """What each subtask receives of *chunks*."""
    sender = Sender(spec, 0)
    return by_subtask(spec, [block for chunk in chunks for block in sender.rows(0, chunk)])


def by_subtask(spec: ExchangeSpec, blocks: Sequence[pa.RecordBatch]) -> list[list[Received]]:
    of_each: list[list[pa.RecordBatch]] = [[] for _ in range(spec.task.parallelism)]
    for block in blocks:
        of_each[block.column(0)[0].as_py()].append(block)
    return [list(received(own)) for own in of_each]


READ: Counter[tuple[str, ...]] = Counter()


@dataclass(frozen=True, slots=True)
class CountedSource(ParquetSource):
    """A source that counts how often which columns are read."""

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        READ[tuple(columns or ())] += 1
        return ParquetSource.read(self, piece, columns)


@pytest.fixture(name="pipeline")
def _pipeline(tmp_path: Path) -> Pipeline:
    """A join of two inputs of one source, which filter and select differently."""
    pipeline = Pipeline("shared")
    rows = pipeline.source(
        "rows",
        Files(str(tmp_path), format="json", schema="kind bigint, a bigint, b bigint, c bigint"),
    )
    left = rows.where("kind = 0").select("a AS id", "b").key_by("id")
    left.join("joined", rows.where("kind = 1").select("a AS key").key_by("key"))
    return pipeline


def test_slices_are_read_once_with_the_columns_of_all_inputs(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    table = pl.DataFrame({"kind": [0, 1, 1], "a": [5, 6, 7], "b": [1, 2, 3], "c": [0, 0, 0]})
    table.write_parquet(tmp_path / "a.parquet")
    source = CountedSource(str(tmp_path))
    slices = source.plan((), max_records=None, parallelism=1).slices
    READ.clear()

    found = read_and_sent(pipeline, SourceRows(source, (slices,), schema_of(table)))

    assert READ == {("kind", "a", "b"): 1}
    assert {part.name: part.rows.drop("_hash").rows() for part in found} == {
        "0": [(5, 1)],
        "1": [(6,), (7,)],
    }


def test_a_line_in_doubt_reaches_every_subtask(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind":0,"a":5,"b":1}\n{"kind":1\n')
    declared = pipeline.sources["rows"].spec
    source = declared.open({}, None).decoded()
    assert source is not None
    slices = source.plan((), max_records=None, parallelism=1).slices
    schema = source.schema().serialize().to_pybytes()

    found = read_and_sent(pipeline, SourceRows(source, (slices,), schema), parallelism=3)

    assert [part.kind for part in found] == [BlockKind.UNDECIDED] * 3


def read_and_sent(pipeline: Pipeline, rows: SourceRows, parallelism: int = 1) -> list[Received]:
    node = pipeline.stages["joined"]
    feeds = [
        Feed(rows=rows, schema=rows.schema, given=given, hashed=given.keys)
        for given in node.shuffled
    ]
    spec = ExchangeSpec(
        stage=node,
        task=TaskPlan(uid="joined", parallelism=parallelism, max_parallelism=8),
        feeds=tuple(feed.narrowed(feed.prepared_schema.names()) for feed in feeds),
        epoch_time=EpochTime(),
        pre_aggregates=False,
    )
    blocks = list(send(spec, [pa.RecordBatch.from_pydict({"id": [0]})]))
    return [part for own in by_subtask(spec, blocks) for part in own]


def schema_of(rows: pl.DataFrame) -> bytes:
    body: bytes = rows.to_arrow().schema.serialize().to_pybytes()
    return body


ROWS = pl.DataFrame(
    {
        "k": range(CARRIED_BYTES // 8),
        "name": [None if n % 7 == 0 else f"number {n}" for n in range(CARRIED_BYTES // 8)],
        "nested": [{"a": [n]} for n in range(CARRIED_BYTES // 8)],
    }
)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCAL_FOLDERS, f"{tmp_path / 'one'},{tmp_path / 'other'}")
    return tmp_path


def a_folder(checkpoint_id: int, stage: str = "totals") -> BlockFolder:
    return BlockFolder(stage=stage, attempt=f"{checkpoint_id:020d}-000001")


def files(local: Path) -> list[Path]:
    return sorted(local.rglob("*.arrow"))


def test_rows_are_read_from_their_places_in_any_order_and_as_often_as_needed(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        places = [file.write(part) for part in (ROWS[:5_000], ROWS[5_000:])]

    for _ in range(2):  # A task that is tried again reads again.
        assert_frame_equal(read_block(places[1]), ROWS[5_000:])
        assert_frame_equal(read_block(places[0]), ROWS[:5_000])
    assert [place.file for place in places] == [str(one) for one in files(local)] * 2
    assert places[0].offset == 0 < places[1].offset


def test_a_slice_does_not_take_along_the_texts_of_the_rows_around_it(local: Path) -> None:
    long = pl.DataFrame({"name": [f"{n:01000d}" for n in range(1_000)]})

    with BlockFile(a_folder(7), 0) as file:
        file.write(long.filter(pl.int_range(pl.len()) % 100 == 0))

    assert files(local)[0].stat().st_size < 20_000


def test_few_rows_are_carried_and_no_file_is_made_for_them(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        assert not file.takes(ROWS[:5])
        assert file.takes(ROWS)

    assert files(local) == []


def test_without_a_folder_or_without_sparks_own_all_rows_are_carried(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not BlockFile(None, 0).takes(ROWS)
    monkeypatch.delenv(LOCAL_FOLDERS)
    assert not BlockFile(a_folder(7), 0).takes(ROWS)


def test_senders_take_turns_with_the_local_folders(local: Path) -> None:
    places = []
    for sender in range(3):
        with BlockFile(a_folder(7), sender) as file:
            places.append(Path(file.write(ROWS).file).relative_to(local).parts[0])

    assert places == ["one", "other", "one"]


def test_the_first_rows_of_an_attempt_take_the_place_of_earlier_ones_of_the_stage(
    local: Path,
) -> None:
    def written(folder: BlockFolder) -> BlockLocation:
        with BlockFile(folder, 0) as file:
            return file.write(ROWS)

    first, later = written(a_folder(7)), written(a_folder(9))
    other, now = written(a_folder(1, "behind")), written(a_folder(8))

    with pytest.raises(StoreUnavailable, match=r"rows that a subtask sent .*\.arrow"):
        read_block(first)
    # An attempt that is older than another one, of a driver that was thought lost, removes none.
    for place in (later, other, now):
        assert read_block(place).height == ROWS.height


def test_a_file_that_is_cut_off_is_not_read_as_fewer_rows(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        place = file.write(ROWS)
    with Path(place.file).open("r+b") as written:
        written.truncate(1_000)

    with pytest.raises(StoreUnavailable, match="rows that a subtask sent"):
        read_block(place)
