"""A table of files: its time line by names of manifests, its refusals, and types of its columns.

The type of a column holds the values of all files exactly, or there is none.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files_table.columns import conformed_to_schema, united, wider
from sluice.connectors.files_table.log import TableLog, timeline_of
from sluice.connectors.files_table.maintenance import decoded_latest
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_files import (
    fence_key,
    is_deletes,
    manifest_key,
    parsed_log_key,
    partition_folder,
    staged_by,
    unit_of,
)
from sluice.core.answers import Attempt
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.errors import ConfigurationError, FencedError, ProtocolViolation, TableMismatch
from sluice.sinks import FilesTable
from sluice.store.memory import InMemoryStore
from tests.builders import PLANNED
from tests.contract.sink_case import JOB

FIRST, SECOND, THIRD = (Writer(life="a", generation=number) for number in (1, 2, 3))
THEIRS = Writer(life="b", generation=1)


@pytest.fixture
def table() -> ManifestTable:
    return ManifestTable("alerts", InMemoryStore())


def publish(table: ManifestTable, writer: Writer, *ids: int, parent: int | None = None) -> None:
    """Without rows: here it is the names that count."""
    for checkpoint_id in ids:
        table.commit(writer, checkpoint_id, parent, [])
        parent = checkpoint_id


def shown(table: ManifestTable) -> list[int]:
    return [manifest.checkpoint_id for manifest in table.chain()]


def names(table: ManifestTable) -> list[str]:
    return [listed.key.removeprefix("_manifests/") for listed in table.store.list("_manifests/")]


def test_fences_sort_behind_what_they_leave_out_and_by_generation() -> None:
    keys = [
        manifest_key(3),
        fence_key(3, 2, 3),
        fence_key(3, 3, None),
        fence_key(3, 3, 1),
        fence_key(3, 3, 2),
        fence_key(3, 10, 1),
        manifest_key(4),
    ]

    assert keys == sorted(keys)
    assert [(name.checkpoint_id, name.generation, name.shown) for key in keys
            if (name := parsed_log_key(key)) is not None] == [
        (3, None, 3), (3, 2, 3), (3, 3, None), (3, 3, 1), (3, 3, 2), (3, 10, 1), (4, None, 4),
    ]  # fmt: skip
    assert (
        parsed_log_key("_manifests/00000000000000000003_0000000001.json") is None
    )  # Format version 1.


def test_each_restore_has_a_fence_of_its_own(table: ManifestTable) -> None:
    publish(table, FIRST, 1, 2, 3)

    table.recover(SECOND, Recovery(version=1, through=3))
    assert shown(table) == [1, 2, 3]
    table.recover(THIRD, Recovery(version=1, through=3, roll_back=True))

    assert shown(table) == [1]
    assert names(table)[-2:] == [
        "00000000000000000003_0000000002_0000000003.json",
        "00000000000000000003_0000000003_0000000001.json",
    ]


def test_the_commit_that_is_owed_is_seen_once_it_happened_and_by_nobody_older(
    table: ManifestTable,
) -> None:
    publish(table, FIRST, 1)
    publish(table, FIRST, 3, parent=1)
    table.recover(SECOND, Recovery(version=1, through=3, continues=2))

    with pytest.raises(FencedError, match="generation 2 of the job has written the table"):
        publish(table, FIRST, 2, parent=1)
    assert (shown(table), table.is_published(2)) == ([1], False)
    for _ in range(2):
        publish(table, THIRD, 2, parent=1)  # After a failure in between.

    assert (shown(table), table.is_published(2), table.is_published(3)) == ([1, 2], True, False)
    publish(table, THIRD, 4, parent=2)
    assert shown(table) == [1, 2, 4]


def test_a_manifest_that_a_zombie_wrote_behind_the_fence_is_seen_when_its_turn_comes(
    table: ManifestTable,
) -> None:
    """It slept between reading the table and writing: its version is not visible."""
    publish(table, FIRST, 1)
    fenced = [*table.store.list("_manifests/")]
    publish(table, FIRST, 2, parent=1)
    late = table.store.get(manifest_key(2)) or b""
    table.store.delete([manifest_key(2)])
    assert [*table.store.list("_manifests/")] == fenced
    table.recover(SECOND, Recovery(version=1, through=2))
    table.store.create(manifest_key(2), late)
    assert (shown(table), table.is_published(2)) == ([1], False)

    assert not table.compare("a", 2).lacks
    table.recover(THIRD, Recovery(version=2, through=2, continues=2))

    assert shown(table) == [1, 2]


def test_a_version_that_is_gone_is_missed(table: ManifestTable) -> None:
    publish(table, FIRST, 1, 2)
    table.store.delete([manifest_key(1)])

    assert table.compare("a", 1) == TimelineComparison(ahead=(2,), lacks=True, newest=2)
    with pytest.raises(TableMismatch, match="continues checkpoint 1, which the table does not"):
        publish(table, FIRST, 3, parent=1)
    with pytest.raises(TableMismatch, match="does not show checkpoint 1"):
        table.recover(SECOND, Recovery(version=1, through=2, roll_back=True))


def test_a_recovery_that_slept_while_the_table_was_deleted_shows_nothing(
    table: ManifestTable,
) -> None:
    """Its fence shows version 1, of which there is no manifest; a new life begins behind it."""
    publish(table, FIRST, 1)
    sleeping = timeline_of(TableLog(table.store))
    table.store.delete([listed.key for listed in table.store.list("_manifests/")])

    sleeping.recover(SECOND, Recovery(version=1, through=1))

    assert names(table) == ["00000000000000000001_0000000002_0000000001.json"]
    assert shown(table) == []
    found = table.compare(THEIRS.life, None)
    assert (found.other_life, found.ahead) == ("a", ())
    table.recover(THEIRS, Recovery(version=None, through=2, replaces=("a",)))
    publish(table, THEIRS, 3)
    assert shown(table) == [3]


def test_an_id_that_another_life_took_is_refused_by_both_names(table: ManifestTable) -> None:
    """Both read the table before either wrote."""
    other = ManifestTable("alerts", InMemoryStore())
    publish(other, THEIRS, 1)
    table.store.create(manifest_key(1), other.store.get(manifest_key(1)) or b"")

    with pytest.raises(TableMismatch, match="belongs to life 'b' of a job, not to life 'a'"):
        publish(table, FIRST, 1)
    log = table._log  # noqa: SLF001 - behind the first check of a commit
    late = msgspec.structs.replace(table.chain()[0], life="a")
    with pytest.raises(TableMismatch, match="was committed by life 'b' of a job, not by life 'a'"):
        log.add(late)


def test_a_life_of_another_journal_takes_over_one_id_later(table: ManifestTable) -> None:
    """Its generations are lower than those of the life before it, whose fences sort by them."""
    publish(table, FIRST, 1)
    table.recover(THIRD, Recovery(version=1, through=1))
    taken = Recovery(version=1, through=1, replaces=("a",))

    with pytest.raises(TableMismatch, match="fenced by another life of a job"):
        table.recover(THEIRS, taken)
    table.recover(THEIRS, Recovery(version=1, through=2, replaces=("a",)))

    with pytest.raises(TableMismatch, match="belongs to life 'b' of a job, not to life 'a'"):
        publish(table, THIRD, 2, parent=1)
    publish(table, THEIRS, 3, parent=1)
    assert shown(table) == [1, 3]


def test_a_commit_of_another_life_that_slept_over_its_fence_stops_the_next_one_by_name(
    table: ManifestTable,
) -> None:
    """Its id is above all that the fence knows of, so readers see it (ADR 16)."""
    publish(table, FIRST, 1)
    before = [*table.store.list("_manifests/")]
    publish(table, FIRST, 3, parent=1)  # It has read the table, and sleeps.
    late = table.store.get(manifest_key(3)) or b""
    table.store.delete([manifest_key(3)])
    assert [*table.store.list("_manifests/")] == before
    table.recover(THEIRS, Recovery(version=1, through=2, replaces=("a",)))
    table.store.create(manifest_key(3), late)
    assert shown(table) == [1, 3]

    with pytest.raises(TableMismatch, match="belongs to life 'a' of a job, not to life 'b'"):
        publish(table, THEIRS, 3, parent=1)

    again = Writer(life="b", generation=2)
    table.recover(again, Recovery(version=1, through=3, replaces=("a",), roll_back=True))
    publish(table, again, 4, parent=1)
    assert shown(table) == [1, 4]


def test_a_table_of_an_earlier_format_is_refused_by_name(table: ManifestTable) -> None:
    before = b'{"version":3,"checkpoint_id":1,"parent":null,"files":[],"upsert_key":null}'
    table.store.create(manifest_key(1), before)

    for act in (table.read, lambda: table.compare("a", None), lambda: publish(table, FIRST, 2)):
        with pytest.raises(ProtocolViolation, match="is of format 3; this sluice reads format 4"):
            act()


def test_a_fence_that_vanished_is_a_violation(table: ManifestTable) -> None:
    class Vanishing(InMemoryStore):
        def get(self, key: str) -> bytes | None:
            return None if "_0000000002_" in key else super().get(key)

    vanishing = ManifestTable("alerts", Vanishing())
    publish(vanishing, FIRST, 1)
    vanishing.recover(SECOND, Recovery(version=1, through=1))

    with pytest.raises(ProtocolViolation, match="was listed and is gone"):
        vanishing.compare("a", 1)


TOKEN = "1-a"


def stage(columns: dict[str, Any], **form: Any) -> list[str]:
    store = InMemoryStore()
    ManifestTable("alerts", store, **form).stage(
        pa.table(columns),
        Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=TOKEN),
    )
    return [one.key for one in store.list("")]


def add(table: ManifestTable, version: int, rows: pa.Table) -> None:
    staged = table.stage(
        rows,
        Attempt(checkpoint_id=version, subtask=0, checkpoint_token=PLANNED, attempt_token=TOKEN),
    )
    assert staged is not None
    table.commit(JOB, version, version - 1 or None, [staged])


@pytest.mark.parametrize(
    ("columns", "by", "message"),
    [
        ({"a": [1]}, ("day",), "its rows have no day; they have a"),
        ({"a": [1.5]}, ("a",), "cannot partition by 'a' of type double"),
        ({"a": [*range(1001)]}, ("a",), "1,001 different values .* more than 1,000"),
        ({"a": ["x" * 300]}, ("a",), "too long for a folder's name"),
    ],
)
def test_what_cannot_be_partitioned_is_refused_before_anything_is_written(
    columns: dict[str, Any], by: tuple[str, ...], message: str
) -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, partition_by=by)

    with pytest.raises(ConfigurationError, match=message):
        table.stage(
            pa.table(columns),
            Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=TOKEN),
        )
    assert [*store.list("")] == []


def test_partitions_are_named_as_hive_names_them() -> None:
    null = "__HIVE_DEFAULT_PARTITION__"
    keys = stage({"a": ["x/y", None, "", null], "n": [1, 2, 2, 2]}, partition_by=("A", "n"))

    stem = "data/00000000000000000001-a_b-00000-1-a"
    assert keys == [
        f"{stem}.parts.json",
        f"{stem}/a=%5F_HIVE_DEFAULT_PARTITION__/n=2/part.parquet",
        f"{stem}/a={null}/n=2/part.parquet",
        f"{stem}/a=x%2Fy/n=1/part.parquet",
    ]
    assert {unit_of(key) for key in keys} == {f"{stem}.parts.json"}
    assert [staged_by(key) for key in keys] == [1, 1, 1, 1]
    assert partition_folder(keys[3]) == "a=x%2Fy/n=1"
    assert not any(map(is_deletes, keys))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.timestamp("ns")),
        pa.array([[(0.5, 1)]], pa.map_(pa.float64(), pa.int64())),
        pa.array([[0]], pa.list_(pa.timestamp("ns"))),
    ],
    ids=str,
)
def test_types_that_json_would_change_are_refused(column: pa.Array) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write column 'c' of type .* as JSON"):
        stage({"c": column}, format="json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "'csv'.* is not known; write parquet or json"),
        ({"partition_by": "day"}, r"partition_by is 'day' \(str\); write \('day',\)"),
        ({"partition_by": ("a", "A")}, "names a column twice"),
        ({"compact_when_files": 1}, "write 2 or more files, or 0 for never"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FilesTable(**options)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-62_135_596_800_000_001], pa.timestamp("us")),
        pa.array([253_402_300_800], pa.timestamp("s", "Europe/Berlin")),
        pa.array([2**63 - 1, None], pa.timestamp("ms")),
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
    ],
    ids=["before", "after", "never", "date"],
)
def test_a_time_that_json_cannot_say_is_refused_by_its_column(column: pa.Array) -> None:
    with pytest.raises(ConfigurationError, match="column 'at' has times outside of the years 1 to"):
        stage({"at": column}, format="json")


def test_the_first_and_the_last_moment_that_json_can_say_come_back() -> None:
    table = ManifestTable("alerts", InMemoryStore(), format="json")
    rows = pa.table(
        {
            "at": pa.array(
                [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
                pa.timestamp("us", "Asia/Tokyo"),
            ),
            "day": [date.min, date.max],
            "ms": pa.array([5, 2**40 + 1], pa.timestamp("ms", "UTC")),
        }
    )

    add(table, 1, rows)

    assert table.read().equals(rows)


@pytest.mark.parametrize("value", ["a\u2028b", "a\u2029b", "a\x85b", "a\nb", "é/%"])
def test_a_partition_of_any_text_is_one_line_for_foreign_readers(value: str) -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, partition_by=("p",), latest=True)
    for version in (1, 2):
        add(table, version, pa.table({"p": [value], "v": [version]}))

    _, *lines = (store.get("_latest") or b"").decode().splitlines()

    assert lines == [f"{store.root}/{file.file}" for one in table.chain() for file in one.files]
    assert decoded_latest((store.get("_latest") or b""), store.root) is not None
    assert table.read().to_pylist() == [{"p": value, "v": 1}, {"p": value, "v": 2}]


LEAST_AND_MOST = {
    **{
        kind: ((0 if "u" in str(kind) else -(2 ** (kind.bit_width - 1))), most)
        for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(),
            pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        )
        for most in [2 ** (kind.bit_width - ("u" not in str(kind))) - 1]
    },
    pa.float32(): (-3.4028234663852886e38, 1.401298464324817e-45),
    pa.float64(): (-1.7976931348623157e308, 0.1),
    pa.decimal128(10, 2): (Decimal("-99999999.99"), Decimal("0.01")),
    pa.decimal128(38, 10): (Decimal("-9999999999999999999999999999.9999999999"), Decimal(1)),
    pa.string(): ("", "é"),
    pa.large_string(): ("", "é"),
    pa.binary(): (b"", b"\xff"),
    pa.timestamp("us"): (-(2**63), 2**63 - 1),
    pa.timestamp("us", "UTC"): (-(2**63), 2**63 - 1),
    pa.timestamp("ms"): (-(2**63), 2**63 - 1),
    pa.date32(): (-(2**31), 2**31 - 1),
    pa.bool_(): (False, True),
}  # fmt: skip
flat = st.sampled_from([*LEAST_AND_MOST])
kinds = st.recursive(
    flat,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(
            lambda fields: pa.struct([*fields.items()])
        )
    ),
    max_leaves=3,
)


def values_of(kind: pa.DataType) -> pa.Array:
    """The least and the greatest of *kind*, and null."""
    if pa.types.is_struct(kind):
        fields = [values_of(field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=[*kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = values_of(kind.value_type)
        return (
            pa.nulls(3, kind) if _is_time(kind) else pa.array([inner.to_pylist(), [], None], kind)
        )
    if _is_time(kind):
        whole = pa.int32() if kind == pa.date32() else pa.int64()
        return pa.array([*LEAST_AND_MOST[kind], None], whole).cast(kind)
    return pa.array([*LEAST_AND_MOST[kind], None], kind)


def _is_time(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_is_time(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind))


@given(kinds, kinds)
def test_the_wider_type_holds_every_value_of_both_and_gives_it_back(
    one: pa.DataType, other: pa.DataType
) -> None:
    wide = wider(one, other)

    if wide is None:
        return
    for kind in (one, other):
        values = values_of(kind)
        held = values.cast(wide)
        assert held.null_count == values.null_count
        assert held.cast(kind).equals(values)


@given(kinds, kinds)
def test_the_order_of_types_does_not_matter_but_for_the_order_of_fields(
    one: pa.DataType, other: pa.DataType
) -> None:
    assert (wider(one, other) is None) == (wider(other, one) is None)
    assert wider(one, one) == one
    assert wider(pa.null(), one) == wider(one, pa.null()) == one


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), pa.uint64(), None),
        (pa.int64(), pa.decimal128(10, 2), pa.decimal128(21, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 6), pa.decimal128(14, 6)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.int64(), pa.string(), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.timestamp("ms"), pa.timestamp("us"), None),
        (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.large_string()),
        (
            pa.struct([("a", pa.int32())]),
            pa.struct([("b", pa.string()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (pa.list_(pa.int32()), pa.list_(pa.string()), None),
    ],
)
def test_types_that_go_together(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert wider(one, other) == both


def test_a_column_that_fits_no_type_is_named_with_both_types_and_what_to_do() -> None:
    before = pa.schema([("id", pa.int64()), ("v", pa.float64())])
    with pytest.raises(ConfigurationError) as refused:
        united([before, pa.schema([("v", pa.string())])], "the table at s3://x")

    assert str(refused.value) == (
        "column 'v' of the table at s3://x is double, and the rows to be added have string, which "
        "no type holds both of; cast it to double in the stage, give the column another name, or "
        "begin a table elsewhere"
    )


def test_rows_take_the_types_of_the_table_and_null_where_they_have_no_column() -> None:
    later = pa.schema([("b", pa.string()), ("A", pa.int64())])
    schema = united([pa.schema([("a", pa.int32())]), later], "it")
    rows = pa.table({"B": ["x"], "_deleted": [True]})

    assert schema.field("a").type == pa.int64()

    assert conformed_to_schema(rows, schema).to_pylist() == [
        {"a": None, "b": "x", "_deleted": True}
    ]
