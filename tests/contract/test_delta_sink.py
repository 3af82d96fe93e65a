"""A Delta table keeps every sink's promises; strangers read it with Polars.

Commits are raced, fenced, rolled back, or lose their answer.  What a table asks of its writers is
kept, or it is refused.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Table
from deltalake import write_deltalake

from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.delta.sink import NO_COLUMNS
from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, TimelineComparison
from sluice.errors import ConfigurationError, FencedError, ProtocolViolation, StoreUnavailable
from sluice.store.open import StoreLocation
from tests.builders import PLANNED
from tests.contract.conftest import BUCKET
from tests.contract.faults import Faults
from tests.contract.restore_rules import (
    a_table_has_one_writer_whichever_root_its_job_is_in,
    publish_in_turn,
)
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    SCHEMA,
    SinkCase,
    publish,
    rows,
    seen,
    stage_deletes,
    staged_rows,
)
from tests.contract.sink_rules import APPEND_RULES, UPSERT_RULES
from tests.delta_tables import a_sink, append_by_hand, case_in, loaded, place_in

KEYS = pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    Table.create(str(tmp_path / "sales"), SCHEMA)

    rule(case_in(tmp_path, create=False))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    rule(case_in(tmp_path, "id"))


@pytest.mark.parametrize("rule", UPSERT_RULES, ids=lambda rule: rule.__name__)
def test_upserted_into_partitions(tmp_path: Path, rule: Callable[[SinkCase], None]) -> None:
    rule(case_in(tmp_path, "id", partition_by=("id",)))


def test_one_writer_whichever_root_its_job_is_in(tmp_path: Path) -> None:
    case, other = case_in(tmp_path), case_in(tmp_path, root="another")

    a_table_has_one_writer_whichever_root_its_job_is_in(case, other)


def stage_table(sink: StagedSink, checkpoint_id: int, table: pa.Table) -> Committable:
    token = "1-a"
    by = Attempt(
        checkpoint_id=checkpoint_id, subtask=0, checkpoint_token=PLANNED, attempt_token=token
    )
    staged = sink.stage(table, by)
    assert staged is not None
    return staged


def publish_table(sink: StagedSink, checkpoint_id: int, table: pa.Table) -> None:
    staged = stage_table(sink, checkpoint_id, table)
    sink.check(checkpoint_id - 1 or None, table.schema, [staged])
    sink.commit(JOB, checkpoint_id, checkpoint_id - 1 or None, [staged])


def test_a_commit_is_one_version_with_a_transaction_of_the_application(tmp_path: Path) -> None:
    case = case_in(tmp_path, "id")
    publish(case.open(), 1, None, rows(1, 2))
    publish(case.open(), 2, 1, rows(2, 3, name="new"))

    history = loaded(tmp_path).history()

    assert [(one["version"], one["sluice.checkpoint-id"]) for one in history] == [(1, 2), (0, 1)]
    assert loaded(tmp_path).transaction_version("sluice") == 2
    assert case.open().describe(2) == f"version 1 of the Delta table {place_in(tmp_path)}"


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    table = pa.table(
        {
            "byte": pa.array([1, None], pa.int8()),
            "whole": pa.array([2**40, None]),
            "unsigned": pa.array([2**32 - 1, None], pa.uint32()),
            "real": pa.array([0.5, None]),
            "text": pa.array(["ü\n", None]),
            "bytes": pa.array([b"\0", None]),
            "yes": pa.array([True, None]),
            "day": pa.array([date(2026, 1, 2), None]),
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "nanos": pa.array([at, None], pa.timestamp("ns", "UTC")),
            "local": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
            "money": pa.array([None, None], pa.decimal128(12, 2)),
            "list": pa.array([[1, None], None], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1, "b": None}, None]),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    publish_table(a_sink(tmp_path), 1, table)
    publish_table(a_sink(tmp_path, "byte"), 2, table.slice(0, 1))

    found = pa.table(loaded(tmp_path).to_pyarrow_table()).sort_by("whole").to_pylist()

    assert found == table.to_pylist()


def test_partitions_of_special_values_are_found_again(tmp_path: Path) -> None:
    schema = pa.schema([("part", pa.string()), ("day", pa.date32()), ("id", pa.int64())])
    values = ["a b", "ü:%", "x/y", None]
    given = [{"part": one, "day": date(2026, 1, 1), "id": n} for n, one in enumerate(values)]
    sink = a_sink(tmp_path, "part", "id", partition_by=("part", "day"))
    publish_table(sink, 1, pa.Table.from_pylist(given, schema))

    publish_table(sink, 2, pa.Table.from_pylist(given[1:], schema))

    found = pl.read_delta(str(tmp_path / "sales")).sort("id").to_dicts()
    assert found == given
    assert loaded(tmp_path).metadata().partition_columns == ["part", "day"]


@pytest.mark.parametrize("key", [("day", "id"), ("id", "day")])
def test_only_files_of_the_partitions_that_changed_are_read_and_rewritten(
    tmp_path: Path, key: tuple[str, str]
) -> None:
    days = [date(2026, 1, day) for day in (1, 2, 3)]
    given = [{"day": day, "id": n, "v": 1} for day in days for n in (1, 2)]
    sink = a_sink(tmp_path, *key, partition_by=("day",))
    publish_table(sink, 1, pa.Table.from_pylist(given))
    before = {*loaded(tmp_path).file_uris()}
    for file in before:
        if "day=2026-01-02" not in file:
            Path(file).rename(f"{file}.away")

    publish_table(sink, 2, pa.table({"day": [days[1]], "id": [2], "v": [2]}))

    gone = before - {*loaded(tmp_path).file_uris()}
    assert [Path(file).parent.name for file in gone] == ["day=2026-01-02"]
    for file in before - gone:
        Path(f"{file}.away").rename(file)
    found = pl.read_delta(str(tmp_path / "sales")).sort("day", "id")
    assert found["v"].to_list() == [1, 1, 1, 2, 1, 1]


def test_the_empty_text_is_null_in_a_partition_and_so_in_its_key(tmp_path: Path) -> None:
    sink = a_sink(tmp_path, "part", "id", partition_by=("part",))
    for number in (1, 2):
        publish_table(sink, number, pa.table({"part": ["", "x"], "id": [1, 1], "v": [number] * 2}))

    found = pl.read_delta(str(tmp_path / "sales")).sort("part").rows()

    assert found == [(None, 1, 2), ("x", 1, 2)]


@pytest.mark.parametrize("create", [False, True])
def test_partitions_that_have_no_folder_are_refused_before_they_are_published(
    tmp_path: Path, create: bool
) -> None:
    at = pa.array([0], pa.timestamp("us", "UTC"))
    null = "__HIVE_DEFAULT_PARTITION__"
    words = ("too long", "of type timestamp", f"by 'text', .* text '{null}' for null; replace it")
    table = pa.table({"id": ["x" * 999], "at": at, "text": [null]})
    for number, column in enumerate(table.column_names):
        folder = tmp_path / column
        if not create:
            Table.create(str(folder / "sales"), table.schema, partition_by=[column])
        declared: dict[str, Any] = {"partition_by": (column,)} if create else {}
        sink = a_sink(folder, create=create, **declared)
        staged = stage_table(sink, 1, table)

        with pytest.raises(ConfigurationError, match=words[number]):
            sink.check(None, table.schema, [staged])


def test_an_upsert_is_no_blind_append_whose_keys_a_concurrent_merge_would_pass_over(
    tmp_path: Path,
) -> None:
    for key in ((), ("id",)):
        publish(a_sink(tmp_path / "".join(key), *key), 1, None, rows(1))

    found = [loaded(tmp_path / name).history(1)[0]["isBlindAppend"] for name in ("", "id")]

    assert found == [True, False]


def test_null_is_a_key_like_any_other_and_files_without_a_key_stay(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    sink = a_sink(tmp_path, "k")
    for checkpoint_id, given in ((1, [None, "a"]), (2, ["x", "z"]), (3, [None, "b"])):
        publish_table(sink, checkpoint_id, pa.table({"k": given, "v": [checkpoint_id] * 2}, schema))

    found = pl.read_delta(str(tmp_path / "sales")).sort("k", "v", nulls_last=True).rows()

    assert found == [("a", 1), ("b", 3), ("x", 2), ("z", 2), (None, 3)]
    before = {*loaded(tmp_path).file_uris()}
    publish_table(sink, 4, pa.table({"k": ["y"], "v": [4]}, schema))
    assert len(before - {*loaded(tmp_path).file_uris()}) == 0  # "y" is in no file.


def test_statistics_lead_readers_to_the_files(tmp_path: Path) -> None:
    sink = a_sink(tmp_path)
    publish(sink, 1, None, rows(1, 2))
    publish(sink, 2, 1, rows(70, 77))

    actions = pa.table(loaded(tmp_path).get_add_actions(flatten=True)).to_pylist()

    told = sorted((one["num_records"], one["min.id"], one["max.id"]) for one in actions)
    assert told == [(2, 1, 2), (2, 70, 77)]
    assert sorted(one["null_count.name"] for one in actions) == [0, 2]
    found = loaded(tmp_path).to_pyarrow_table(filters=[("id", "=", 77)])
    assert found["id"].to_pylist() == [77]


def test_an_epoch_without_rows_comes_before_the_columns(tmp_path: Path) -> None:
    sink = a_sink(tmp_path)
    publish(sink, 1, None, [])
    assert loaded(tmp_path).to_pyarrow_table().column_names == [NO_COLUMNS]
    first = loaded(tmp_path).metadata().id

    publish(sink, 2, 1, rows(1))

    assert loaded(tmp_path).to_pyarrow_table().column_names == SCHEMA.names
    assert loaded(tmp_path).metadata().id == first


def test_rows_that_do_not_fit_are_refused_before_they_are_published(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "sales"), SCHEMA)
    sink = a_sink(tmp_path, create=False)
    for table, message in (
        (pa.table({"id": [1], "nme": ["a"]}), "has no column 'nme'"),
        (pa.table({"name": ["a"]}), "column 'id' .* is required"),
        (pa.table({"id": ["one"]}), "column 'id' is string, and int64"),
        (pa.table({"id": [None]}, pa.schema([("id", pa.int64())])), "1 rows have no value in it"),
    ):
        staged = stage_table(sink, 1, table)
        with pytest.raises(ConfigurationError, match=message):
            sink.check(None, table.schema, [staged])
    with pytest.raises(ConfigurationError, match="no column 'uid', by which the sink upserts"):
        a_sink(tmp_path, "uid").check(None, SCHEMA, [])
    nowhere = a_sink(tmp_path / "x", create=False)
    with pytest.raises(ConfigurationError, match=r"there is no Delta table at .* create=True"):
        nowhere.check(None, SCHEMA, [])
    with pytest.raises(ConfigurationError, match=r"there is no Delta table at .* create=True"):
        nowhere.commit(JOB, 1, None, [])


@pytest.mark.parametrize(
    ("given", "wanted", "loss"),
    [
        (pa.float64(), pa.float32(), "values would be rounded"),
        (pa.float64(), pa.decimal128(10, 2), "values would be rounded"),
        (pa.decimal128(38, 19), pa.float64(), "values would be rounded"),
        (pa.timestamp("us", "UTC"), pa.date32(), "a part of each timestamp would be lost"),
        (pa.int64(), pa.bool_(), "all numbers but 0 would be true"),
        (pa.int64(), pa.timestamp("us", "UTC"), "a number does not say of which unit it is"),
        (pa.date32(), pa.int32(), "a number does not say of which unit it is"),
        (
            pa.struct([("b", pa.float64()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.float32())]),
            "values would be rounded",
        ),
        (
            pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])),
            pa.list_(pa.struct([("a", pa.int64())])),
            "its field 'b' would be lost",
        ),
    ],
    ids=str,
)
def test_a_value_that_the_table_would_change_is_refused(
    tmp_path: Path, given: pa.DataType, wanted: pa.DataType, loss: str
) -> None:
    Table.create(str(tmp_path / "sales"), pa.schema([("x", wanted)]))
    sink = a_sink(tmp_path, create=False)
    rows = pa.table({"x": pa.nulls(1, given)})

    with pytest.raises(ConfigurationError, match=f"column 'x' is .*: {loss}; cast it in the stage"):
        sink.check(None, rows.schema, [stage_table(sink, 1, rows)])


# What a table may ask of its writers, and the words that refuse it; of an upsert alone, if so.
ASKED: dict[str, tuple[dict[str, str], str, bool]] = {
    "constraint": ({"delta.constraints.c": "id > 0"}, r"constraint \(delta.constraints.c\)", False),
    "mapping": ({"delta.columnMapping.mode": "name"}, "maps its columns", False),
    "retention": (
        {"delta.setTransactionRetentionDuration": "interval 7 days"}, "forgets application", False,
    ),
    "append only": ({"delta.appendOnly": "true"}, "only takes appended rows", True),
}  # fmt: skip


def write_version(folder: Path, *actions: dict[str, Any]) -> None:
    """As another writer does it, of whichever features."""
    log = folder / "sales" / "_delta_log"
    number = len([*log.glob("*.json")])
    (log / f"{number:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def metadata_of(folder: Path) -> dict[str, Any]:
    lines = (folder / "sales" / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    found = [json.loads(line)["metaData"] for line in lines if "metaData" in json.loads(line)]
    return dict(found[0])


def publishes(folder: Path, *key: str) -> bool:
    sink = a_sink(folder, *key, create=False)
    version = sink.compare(JOB.life, None).newest
    publish(sink, version + 1, version or None, rows(version + 1))
    return True


@pytest.mark.parametrize("what", ASKED)
def test_what_a_table_asks_and_is_not_kept_is_refused(what: str, tmp_path: Path) -> None:
    configuration, message, of_upserts_alone = ASKED[what]
    Table.create(str(tmp_path / "sales"), SCHEMA)
    publishes(tmp_path, "id")
    write_version(tmp_path, {"metaData": metadata_of(tmp_path) | {"configuration": configuration}})

    with pytest.raises(ConfigurationError, match=message):
        publishes(tmp_path, "id")
    if of_upserts_alone:
        assert publishes(tmp_path)


@pytest.mark.parametrize("rule", ["delta.invariants", "delta.generationExpression"])
def test_a_rule_of_a_column_is_refused(rule: str, tmp_path: Path) -> None:
    Table.create(str(tmp_path / "sales"), SCHEMA)
    metadata = metadata_of(tmp_path)
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"][rule] = "id"
    write_version(tmp_path, {"metaData": metadata | {"schemaString": json.dumps(schema)}})

    with pytest.raises(ConfigurationError, match=f"a column with .*{rule}"):
        publishes(tmp_path)


@pytest.mark.parametrize(
    ("version", "features", "message"),
    [
        (7, ["rowTracking", "appendOnly"], "the feature rowTracking"),
        (7, ["inCommitTimestamp"], "the feature inCommitTimestamp"),
        (7, ["appendOnly", "timestampNtz"], ""),
        (6, None, ""),
    ],
)
def test_a_feature_that_is_not_known_is_refused(
    version: int, features: list[str] | None, message: str, tmp_path: Path
) -> None:
    Table.create(str(tmp_path / "sales"), SCHEMA)
    reader = [one for one in features or () if one == "timestampNtz"]
    protocol: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": version}
    protocol |= {"readerFeatures": reader} if reader else {}
    protocol |= {"writerFeatures": features} if features else {}
    write_version(tmp_path, {"protocol": protocol})

    if not message:
        assert publishes(tmp_path, "id")
        return
    with pytest.raises(ConfigurationError, match=message):
        publishes(tmp_path)


def a_vector(*deleted: int) -> dict[str, Any]:
    """A deletion vector that lies in the log: one 64-bit map of one 32-bit roaring array."""
    head = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, 16)
    bitmap = head + struct.pack(f"<{len(deleted)}H", *deleted)
    body = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    body += b"\0" * (-len(body) % 4)
    z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    ours = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    text = base64.b85encode(body).translate(bytes.maketrans(ours, z85)).decode()
    size = len(body) - (-len(bitmap) % 4)
    found = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size}
    return found | {"cardinality": len(deleted)}


def test_upserts_refuse_deletion_vectors_and_appends_take_them(tmp_path: Path) -> None:
    """Spark would show rows twice of a file that is removed without its vector."""
    write_deltalake(
        str(tmp_path / "sales"),
        pa.Table.from_pylist(rows(101, 102), SCHEMA),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    (log,) = (tmp_path / "sales" / "_delta_log").glob("*.json")
    (add,) = [one["add"] for one in map(json.loads, log.read_text().splitlines()) if "add" in one]
    gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    write_version(tmp_path, {"remove": gone}, {"add": add | {"deletionVector": a_vector(1)}})
    found = pa.RecordBatchReader.from_stream(loaded(tmp_path).deletion_vectors()).read_all()
    assert found["selection_vector"].to_pylist() == [[True, False]]

    with pytest.raises(ConfigurationError, match="has deletion vectors"):
        publishes(tmp_path, "id")
    assert publishes(tmp_path)
    with pytest.raises(ConfigurationError, match="has deletion vectors"):
        a_sink(tmp_path).recover(RESTORED, Recovery(version=None, through=1, roll_back=True))


def test_an_upsert_feeds_the_changes_that_it_made(tmp_path: Path) -> None:
    Table.create(
        str(tmp_path / "sales"), SCHEMA, configuration={"delta.enableChangeDataFeed": "true"}
    )
    sink = a_sink(tmp_path, "id", create=False)
    publish(sink, 1, None, rows(1, 2, 3))
    staged = [staged_rows(sink, 2, 2, 4, name="new"), stage_deletes(sink, 2, rows(3))]
    sink.commit(JOB, 2, 1, staged)

    feed = pa.table(loaded(tmp_path).load_cdf(starting_version=1).read_all())

    told = {(one["_change_type"], one["id"], one["_commit_version"]) for one in feed.to_pylist()}
    appended = {("insert", number, 1) for number in (1, 2, 3)}
    assert told == appended | {
        ("delete", 2, 2), ("delete", 3, 2), ("insert", 2, 2), ("insert", 4, 2)
    }  # fmt: skip
    assert feed.num_rows == len(told)


def test_a_log_is_summed_up_and_goes_on(tmp_path: Path) -> None:
    case = case_in(tmp_path, "id")
    publish_in_turn(case, *range(1, 13))

    assert [*(tmp_path / "sales" / "_delta_log").glob("*.checkpoint.parquet")]
    for entry in (tmp_path / "sales" / "_delta_log").glob("*.json"):
        if int(entry.stem) < 10:
            entry.unlink()  # As it is cleaned up after its retention.
    publish(case.open(), 13, 12, rows(3, 13, name="new"))
    assert case.open().compare(JOB.life, None).ahead == tuple(range(1, 14))
    assert {row["id"] for row in seen(case)} == {*range(1, 14)}
    with pytest.raises(ConfigurationError, match=r"checkpoints 2, .* are not in its log any more"):
        case.open().recover(RESTORED, Recovery(version=1, through=13, roll_back=True))


@pytest.mark.parametrize("cleans", ["true", "false"])
def test_a_log_is_cleaned_up_unless_it_is_to_be_kept(tmp_path: Path, cleans: str) -> None:
    kept = {
        "delta.enableExpiredLogCleanup": cleans,
        "delta.logRetentionDuration": "interval 0 days",
        "delta.checkpointInterval": "2",
    }
    Table.create(str(tmp_path / "sales"), SCHEMA, configuration=kept)

    for number in range(1, 9):
        publish(a_sink(tmp_path, create=False), number, number - 1 or None, rows(number))

    log = tmp_path / "sales" / "_delta_log"
    assert (log / f"{0:020}.json").exists() == (cleans == "false")


def test_other_writers_are_kept_and_refuse_to_be_rolled_back(tmp_path: Path) -> None:
    case = case_in(tmp_path)
    publish(case.open(), 1, None, rows(1))
    append_by_hand(tmp_path, 101)
    publish(case.open(), 2, 1, rows(2))
    loaded(tmp_path).optimize.compact()
    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    assert seen(case) == rows(1, 101)
    publish(case.open(), 3, 1, rows(3), RESTORED)
    version = append_by_hand(tmp_path, 102)

    with pytest.raises(ConfigurationError, match=rf"would be lost: {version} \(WRITE\)"):
        case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=3, roll_back=True))
    assert seen(case) == rows(1, 3, 101, 102)


def test_files_that_were_vacuumed_cannot_be_brought_back(tmp_path: Path) -> None:
    case = case_in(tmp_path, "id")
    publish(case.open(), 1, None, rows(1, 2))
    publish(case.open(), 2, 1, rows(2, name="new"))
    loaded(tmp_path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert seen(case) == [*rows(1), *rows(2, name="new")]

    with pytest.raises(ConfigurationError, match=r"was deleted \(VACUUM\)"):
        case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))


@pytest.mark.parametrize("by_time", [False, True], ids=["version", "time"])
def test_a_table_that_somebody_restored_shows_what_it_shows(tmp_path: Path, by_time: bool) -> None:
    case = case_in(tmp_path, "id")
    publish_in_turn(case, 1, 2, 3)
    append_by_hand(tmp_path, 101)
    history = {one["version"]: one["timestamp"] for one in loaded(tmp_path).history()}
    at = datetime.fromtimestamp(history[0] / 1000, UTC) if by_time else 0

    loaded(tmp_path).restore(at)

    assert case.open().compare(JOB.life, 1) == TimelineComparison(newest=3)
    assert case.open().compare(JOB.life, 3).lacks
    case.open().recover(RESTORED, Recovery(version=1, through=3))
    publish(case.open(), 4, 1, rows(4), RESTORED)
    assert case.open().compare(JOB.life, None).ahead == (1, 4)
    assert seen(case) == rows(1, 4)


def test_a_table_made_anew_at_its_place_is_another_one(tmp_path: Path) -> None:
    case = case_in(tmp_path)
    publish_in_turn(case, 1, 2)
    before = (tmp_path / "sales").rename(tmp_path / "moved")
    Table.create(str(tmp_path / "sales"), SCHEMA)
    assert case.open().compare(JOB.life, None) == TimelineComparison()

    (tmp_path / "sales").rename(tmp_path / "anew")
    before.rename(tmp_path / "sales")  # It is known by its id, and the note is its own.
    assert case.open().compare(JOB.life, None).ahead == (1, 2)


def test_a_note_that_is_gone_is_named_with_the_fix(tmp_path: Path) -> None:
    case = case_in(tmp_path)
    publish(case.open(), 1, None, rows(1))
    (note,) = (tmp_path / "sales" / "_sluice").glob("*.json")
    note.unlink()
    with pytest.raises(ProtocolViolation, match=f"{note.name}, the note .*, is missing; put it"):
        case.open().is_published(1)

    note.write_text("")

    assert case.open().compare(JOB.life, 1) == TimelineComparison(lacks=True)


def faulty_case(folder: Path, key: tuple[str, ...], fates: Iterable[str]) -> SinkCase:
    layer = Faults("_delta_log/", [*fates])
    case = case_in(folder, *key)
    spec = DeltaTable(place_in(folder), upsert_key=key, create=True)
    root = f"file://{folder}/root/tables/sales"
    layer.another = lambda: append_by_hand(folder, 100 + loaded(folder).version())
    return SinkCase(lambda: spec.open("sales", {}, StoreLocation(root, layer=layer)), case.read)


@pytest.mark.parametrize("fate", ["request lost", "answer lost", "sent twice"])
@KEYS
def test_a_commit_is_there_once_whatever_was_answered(
    key: tuple[str, ...], fate: str, tmp_path: Path
) -> None:
    publish(case_in(tmp_path, *key).open(), 1, None, rows(1, 2))
    case = faulty_case(tmp_path, key, [fate])
    staged = staged_rows(case.open(), 2, 3) if not key else staged_rows(case.open(), 2, 2, 3)

    for _ in range(2):
        with suppress(StoreUnavailable):
            case.open().commit(JOB, 2, 1, [staged])
    publish(case.open(), 3, 2, rows(4))

    assert seen(case) == rows(1, 2, 3, 4)
    assert [one["sluice.checkpoint-id"] for one in loaded(tmp_path).history()] == [3, 2, 1]


@pytest.mark.parametrize("fate", ["request lost", "answer lost", "sent twice"])
def test_a_restore_is_there_once_whatever_was_answered(fate: str, tmp_path: Path) -> None:
    publish_in_turn(case_in(tmp_path), 1, 2)
    case = faulty_case(tmp_path, (), [fate])

    for _ in range(2):
        with suppress(StoreUnavailable):
            case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    publish(case.open(), 3, 1, rows(3), RESTORED)

    assert seen(case) == rows(1, 3)
    assert loaded(tmp_path).version() == 3


@KEYS
def test_others_that_are_faster_cost_nothing_and_lose_nothing(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    publish(case_in(tmp_path, *key).open(), 1, None, rows(1, 2))
    case = faulty_case(tmp_path, key, ["overtaken"] * 3)
    staged = staged_rows(case.open(), 2, 3) if not key else staged_rows(case.open(), 2, 2, 3)

    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2, 3, 100, 101, 102)
    there = {file.name for file in (tmp_path / "sales").glob("sluice-2-*")}
    assert len(there) == 1 + len(key)  # What was rewritten in vain is deleted again.


def test_a_restore_in_the_middle_of_a_commit_fences_it(tmp_path: Path) -> None:
    publish(case_in(tmp_path).open(), 1, None, rows(1))
    late = staged_rows(case_in(tmp_path).open(), 2, 2)
    layer = Faults(
        "_delta_log/",
        ["overtaken"],
        lambda: a_sink(tmp_path).recover(RESTORED, Recovery(version=1, through=2)),
    )
    spec = DeltaTable(place_in(tmp_path), create=True)
    root = f"file://{tmp_path}/root/tables/sales"

    with pytest.raises(FencedError, match=r"Delta table .*: generation 2 of the job"):
        spec.open("sales", {}, StoreLocation(root, layer=layer)).commit(JOB, 2, 1, [late])
    assert seen(case_in(tmp_path)) == rows(1)


@pytest.mark.s3
def test_a_table_in_a_bucket(tmp_path: Path, s3_endpoint: str) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}/sales"
    spec = DeltaTable(place, upsert_key=("id",), create=True)
    root = StoreLocation(f"s3://{BUCKET}/{tmp_path.name}/root", endpoint_url=s3_endpoint)
    options = {"aws_endpoint": s3_endpoint, "aws_allow_http": "true"}

    def read() -> list[dict[str, Any]]:
        return pl.read_delta(place, storage_options=options).to_dicts()

    case = SinkCase(lambda: spec.open("sales", {}, root), read)
    publish(case.open(), 1, None, rows(1, 2))
    write_deltalake(
        place, pa.Table.from_pylist(rows(9), SCHEMA), mode="append", storage_options=options
    )
    publish(case.open(), 2, 1, rows(2, 3, name="new"))
    assert seen(case) == [*rows(1), *rows(2, 3, name="new"), *rows(9)]
    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    assert seen(case) == rows(1, 2, 9)
    publish_in_turn_from(case, 3)
    assert [row["id"] for row in seen(case)] == [*range(1, 16)]


def publish_in_turn_from(case: SinkCase, first: int) -> None:
    for checkpoint_id in range(first, 16):
        parent = checkpoint_id - 1 if checkpoint_id > first else 1
        publish(case.open(), checkpoint_id, parent, rows(checkpoint_id), RESTORED)
