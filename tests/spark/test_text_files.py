"""CSV and JSON by real Spark: what is a row, what is malformed, and with which file and line.

Lines of JSON that Python decodes hold what Spark reads of them, and all others are Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.files.declared import OPTIONS
from sluice.connectors.plain_lines import PlainJson, plain_lines, with_objects
from sluice.core.completed import CheckpointMetadata
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.column_types import row_schema
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import END, MALFORMED_COLUMN, TextDecoding, UndecidedError
from sluice.exchange.reading import SOURCE
from sluice.job.places import open_side_table
from sluice.sources import Files
from sluice.spark.frames import decoded_text, text_rows
from sluice.state.segments import to_frame
from tests.examples import slow_but
from tests.spark.folder_job import a_submitted_job, completed_epochs
from tests.spark.test_exchange import checksums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

DDL = "id int, name string, price double"


def rows_of(spark: SparkSession, files: Files) -> list[Row]:
    source = files.open({}, None)
    assert source.decoding is not None
    barrier = source.plan((), max_records=None, parallelism=3)
    rows = text_rows(spark, source, source.decoding, barrier.slices, 3).collect()
    return sorted(rows, key=lambda row: (row["_source"].partition, row["_source"].record))


def good(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row.id, row.name, row.price) for row in rows if row["_malformed"] is None]


def bad(rows: list[Row]) -> list[tuple[str, int, str]]:
    """File, line (from 1), and what was there."""
    return [
        (row["_source"].partition, row["_source"].record + 1, row["_raw"])
        for row in rows
        if row["_malformed"] is not None
    ]


def test_rows_are_decoded_and_wrong_ones_are_malformed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "id,name,price\r\n"
        '1,"a ""quoted"", name",2.5\r\n'
        "\r\n"
        "2,too few\r\n"
        "3,too,4,many\r\n"
        "   \r\n"
        "x,not a number,1\r\n"
        "4,,\r\n"
        "5,NA,nor a price\r\n"
        "#6,no comment,1\r\n"
        "7,NA,NA"
    )
    (tmp_path / "b.csv").write_text("ID,Name,Price\n8,second file,1\nid,name,price\n")

    rows = rows_of(
        spark, Files(str(tmp_path), format="csv", schema=DDL, header=True, null_value="NA")
    )

    assert good(rows) == [
        (1, 'a "quoted", name', 2.5),
        (4, None, None),
        (7, None, None),
        (8, "second file", 1.0),
    ]
    assert bad(rows) == [
        ("a.csv", 4, "2,too few"),
        ("a.csv", 5, "3,too,4,many"),
        ("a.csv", 7, "x,not a number,1"),
        ("a.csv", 9, "5,NA,nor a price"),
        ("a.csv", 10, "#6,no comment,1"),
        ("b.csv", 3, "id,name,price"),
    ]


def test_a_field_with_a_line_break_is_no_row(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('1,"two\nlines",3\n2,one,4\n')

    rows = rows_of(spark, Files(str(tmp_path), format="csv", schema=DDL))

    assert good(rows) == [(2, "one", 4.0)]
    assert bad(rows) == [("a.csv", 1, '1,"two'), ("a.csv", 2, 'lines",3')]


def test_a_quote_that_is_open_at_the_end_is_malformed_in_the_last_column_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text('1,"two\nlines"\n2,"one"\n3,"a\n')

    rows = rows_of(spark, Files(str(tmp_path), format="csv", schema="id int, name string"))

    assert [(row.id, row.name) for row in rows if row["_malformed"] is None] == [(2, "one")]
    assert bad(rows) == [
        ("a.csv", 1, '1,"two'),
        ("a.csv", 2, 'lines"'),
        ("a.csv", 4, '3,"a'),
    ]


@pytest.mark.parametrize(("delimiter", "line"), [(" ", "  "), ("\t", "\t\t"), ("||", "||||")])
def test_a_line_of_nothing_but_delimiters_is_a_row(
    spark: SparkSession, tmp_path: Path, delimiter: str, line: str
) -> None:
    full = delimiter.join(["1", "x", "2.5"])
    (tmp_path / "a.csv").write_text(f"{line}\n\n{full}\n")

    rows = rows_of(spark, Files(str(tmp_path), format="csv", schema=DDL, delimiter=delimiter))

    assert good(rows) == [(None, None, None), (1, "x", 2.5)]
    assert bad(rows) == []


def test_the_options_of_a_declaration_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\t'a\tb'\t24.12.2026\n")
    (tmp_path / "b.tsv").write_text("2\tc\t2026-12-24\n")
    files = Files(
        str(tmp_path),
        format="csv",
        schema="id int, name string, price date",
        delimiter="\t",
        quote="'",
        options={"dateFormat": "dd.MM.yyyy"},
    )

    rows = rows_of(spark, files)

    assert [(row.id, row.name, str(row.price)) for row in rows if not row["_malformed"]] == [
        (1, "a\tb", "2026-12-24")
    ]
    assert bad(rows) == [("b.tsv", 1, "2\tc\t2026-12-24")]


def test_files_that_spark_wrote_are_read_with_its_escape(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = 'a "quoted", name'
    table = spark.createDataFrame([(1, name, 2.5)], DDL)
    table.write.csv(str(tmp_path / "out"), header=True, compression="gzip")

    files = Files(str(tmp_path / "out"), format="csv", schema=DDL, header=True, escape="\\")

    assert good(rows_of(spark, files)) == [(1, name, 2.5)]


def test_wrong_json_keeps_its_file_and_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n{"id": "x"}\n\nno json\n{"id": 2, "other": 1}\n')

    rows = rows_of(spark, Files(str(tmp_path), format="json", schema=DDL))

    assert good(rows) == [(1, None, None), (2, None, None)]
    assert bad(rows) == [("a.json", 2, '{"id": "x"}'), ("a.json", 4, "no json")]


def test_a_line_of_json_is_one_object_or_malformed_and_nothing_behind_it_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    wrong = [
        '{"id": 1}{"id": 2}',
        '{"id": 3} garbage',
        '{"id": 4},',
        '{"id": 5}}',
        '{"id": 6}, "sluice_end_9b1fd3c5a7": "sluice_end_9b1fd3c5a7"} {"id": 7}',
        '{"id": 8}\r{"id": 9}',
        '[{"id": 10}]',
        '[{"id": 11}, {"id": 12}]',
        "null",
        '"text"',
        "13",
    ]
    right = ['{"id": 20}', ' {"id": 21, "name": "{}}"} ', "{}", '{"id":22,"more":[{}]}']
    (tmp_path / "a.json").write_bytes("\n".join([*wrong, "\t ", *right]).encode())

    rows = rows_of(spark, Files(str(tmp_path), format="json", schema=DDL))

    assert bad(rows) == [("a.json", line, text) for line, text in enumerate(wrong, 1)]
    assert good(rows) == [
        (20, None, None),
        (21, "{}}", None),
        (None, None, None),
        (22, None, None),
    ]


@pytest.mark.parametrize("format_", ["csv", "json"])
@pytest.mark.parametrize("pattern", [None, "dd.MM.yyyy"])
def test_a_day_that_no_calendar_has_is_malformed(
    spark: SparkSession, tmp_path: Path, format_: Literal["csv", "json"], pattern: str | None
) -> None:
    days = ["2026-02-28", "2026-02-30", "2026-13-01", "2026-02-29T10:00:00Z"]
    if pattern is not None:
        days = ["28.02.2026", "30.02.2026", "1.2.2026", "29.02.2026"]
    lines = [f'{{"day": "{day}"}}' if format_ == "json" else day for day in days]
    (tmp_path / f"a.{format_}").write_text("\n".join(lines))
    options = {} if pattern is None else {"dateFormat": pattern}

    rows = rows_of(spark, Files(str(tmp_path), format=format_, schema="day date", options=options))

    assert [row.day for row in rows if row["_malformed"] is None] == [date(2026, 2, 28)]
    assert [raw for _, _, raw in bad(rows)] == lines[1:]


def test_options_of_json_hold_within_a_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{'id': 1} // one\n{id: 2} /* two */\n{id: 3} /* open\n")
    options = {"allowComments": "true", "allowUnquotedFieldNames": "true"}

    rows = rows_of(spark, Files(str(tmp_path), format="json", schema=DDL, options=options))

    assert good(rows) == [(1, None, None), (2, None, None)]
    assert bad(rows) == [("a.json", 3, "{id: 3} /* open")]


SEED = 20261123
SCHEMA = "a bigint, d double, s string, b boolean, i int, t struct<x: bigint, y: string>"
HOW = TextDecoding(format="json", schema=SCHEMA)

VALUES = [
    *("0", "-0", "1", "-1.0", "1e2", "1E400", "1e-400", "0.1", "-0.0", "-0e5", "01", "+1", ".5"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "1" * 30, "1" * 1_001, "1.", "-"),
    *("null", "true", "false", "True", "NaN", "-Infinity", "Inf", "INF", "nil", "undefined", ""),
    *(
        '""',
        '"x"',
        '"1"',
        '"NaN"',
        '"é日😀"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\x"',
    ),
    *(
        '"\\/\\b\\n\\t\\""',
        '"a\tb"',
        '"\x7f"',
        '"\\u0000"',
        "'x'",
        '"x',
        '": NaN"',
        '"{\\"a\\":1}"',
    ),
    *("{}", '{"x":1}', '{"x":1,"x":2}', '{"x":"1"}', '{"y":null,"z":[{}]}', "[]", "[1]", "[[1,]]"),
    *('{"y":"q"}', "[" * 400 + "]" * 400, "[" * 1_100 + "]" * 1_100, f'"{END}"', "/*c*/1", "1 2"),
]
GOOD_SHAPES = ['{"%s":%s}', '{"%s" : %s ,"z":{"a":[1]}}', '{"a":1,"%s":%s}']
TEXTS = {
    "date": [
        *("2026-03-01", "2024-02-29", "2026-02-29", "2026-02-30", "2026-13-01", "2026-00-01"),
        *("2026-3-1", "2026-03", "2026", "0001-01-01", "0000-01-01", "-001-01-01", "9999-12-31"),
        *("1582-10-04", "1582-10-10", "1582-10-15", "1900-01-01", "10000-01-01", "+2026-03-01"),
        *("20260301", "2026-03-01T", "2026-03-01T10:00:00", "01.03.2026", "03/01/2026", "today"),
        *("2026-03-01Z", "epoch", "2026/03/01", "20261-1-01", "1970-01-01", "1969-12-31"),
    ],
    "tinyint": ["0", "-0", "1", "-128", "127", "128", "255", "256", "-129", "1.0", "1e1", "007"],
    "smallint": ["0", "-1", "32767", "32768", "-32768", "1.5", "00", "+1", "0x1", "1 0", "_1"],
}
for _kind in ("timestamp", "timestamp_ntz"):
    _days = ("2026-03-01", "1969-12-31", "1582-10-10", "0001-01-01", "0000-01-01", "2026-02-30")
    _zones: tuple[str, ...]
    _zones = (
        "",
        "Z",
        "z",
        "+00:00",
        "-00:00",
        "+02:00",
        "-11:30",
        "+17:59",
        "+18:00",
        "+18:01",
    )
    _zones += ("+23:59", "+02", "+0200", "+2:00", " UTC", " Europe/Berlin", "+02:60")
    _times: tuple[str, ...]
    _times = (
        "T10:00:00",
        " 10:00:00",
        "T23:59:59",
        "T24:00:00",
        "T10:00:60",
        "T10:00",
        "T10",
        "",
    )
    _times += ("T1:00:00", "T10:00:00.1", "T10:00:00.123456", "T10:00:00.1234567", "T10:00:00.")
    _times += ("t10:00:00", "T100000", "T10:00:00,5", "T10:60:00", "  10:00:00", "T 10:00:00")
    TEXTS[_kind] = [
        *(f"{day}T10:00:00{zone}" for day in _days for zone in _zones),
        *(f"2026-03-01{time}{zone}" for time in _times for zone in ("", "Z", "-07:00", "+0200")),
        *("1767225600", "1767225600000", "10:00:00", "T10:00:00", "now"),
    ]
SHAPES = [
    ' {"%s":%s}',
    '{"%s":%s} ',
    '{"%s":%s}}',
    '{"%s":%s},',
    '{"%s":%s}{}',
    '{"%s":%s} x',
    '{"%s":%s',
    '\xa0{"%s":%s}',
]
OTHERS = ["", " ", "null", "[]", '[{"a":1}]', "1", '"x"', "{}", "{}{}", "{,}", '{"a"}', "\ufeff{}"]


def test_a_line_that_is_decoded_holds_what_spark_reads_of_it(spark: SparkSession) -> None:
    lines = hostile_lines()

    assert 400 < decided_as_spark_does(spark, HOW, lines) < len(lines) - 400


@pytest.mark.parametrize("kind", [*TEXTS])
def test_a_text_of_a_type_is_decoded_as_spark_does_or_left_to_it(
    spark: SparkSession, kind: str
) -> None:
    texts = [*TEXTS[kind], *broken(TEXTS[kind], 200, "0:-+.eZ \tx")]
    quoted = [f'"{text}"' for text in texts]
    bare = texts if kind in {"tinyint", "smallint"} else ["1", "1.5"]
    for_json = [*quoted, *bare, "null", '""', "{}", "[]", "true"]
    json = TextDecoding(format="json", schema=f"a {kind}, t struct<x: {kind}>")
    objects = [f'{{"a":{text}}}' for text in for_json]
    objects += [f'{{"t":{{"x":{text}}},"a":null}}' for text in for_json]
    objects += [f'{{"a":{text},"a":{text}}}' for text in for_json[:20]]
    fields = [*texts, *quoted, "", "NA", " ", *(f" {text} " for text in texts[:20])]
    csv = csv_of(f"a {kind}, s string", nullValue="NA")
    rows = [f"{text},x" for text in fields]

    assert decided_as_spark_does(spark, json, objects) > len(texts) // 20
    assert decided_as_spark_does(spark, csv, rows) > len(texts) // 20


def test_an_array_that_is_decoded_holds_what_spark_reads_of_it(spark: SparkSession) -> None:
    how = TextDecoding(
        format="json",
        schema="a array<bigint>, d array<double>, s array<string>, n array<array<int>>,"
        "t array<struct<x: bigint, y: string>>",
    )
    inner = ["", "1", "1,2", "null", "1,null", '"x"', "1.5", "-0.0", "1e400", "[]", "[1]", "[[1]]"]
    inner += ["{}", '{"x":1}', '{"x":"1"}', '{"x":1},{}', "1,", ",", "true", '"1.25"', "1.255"]
    values = [f"[{text}]" for text in inner] + ["null", "{}", "1", '"[]"', "[1", "[1]]"]
    shapes = ['{"%s":%s}', '{"%s":%s,"a":[1]}', '{"a":[1],"%s":%s}', '{"a":[1],"z":{"%s":%s}}']
    lines = [shape % (name, text) for shape in shapes for name in "adsnt" for text in values]

    assert len(lines) // 8 < decided_as_spark_does(spark, how, lines) < len(lines) - 100


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nullValue": "NA"},
        {"sep": ";", "quote": "'", "escape": "'"},
        {"sep": "\t"},
        {"sep": "|", "escape": "\\", "nullValue": "x"},
    ],
    ids=str,
)
def test_a_row_of_csv_that_is_decoded_holds_what_spark_reads_of_it(
    spark: SparkSession, options: dict[str, str]
) -> None:
    how = csv_of("a bigint, s string, d double, b boolean", **options)
    sep, quote, escape = (how.options[name] for name in ("sep", "quote", "escape"))
    numbers = ["", "1", "-7", "007", "+1", "0x1F", " 1", "1 ", "1.0", "9223372036854775808", "-0"]
    numbers += ["NA", "x", "1_0", "١", "1L"]  # noqa: RUF001 - an Arabic digit, which Java reads
    texts = ["", "x", " x ", "é日😀", "NA", "\u00a0", "#x", "\x01", "\ufeff", "\\", "\\N", "\x7f"]
    texts += [
        "QQ",
        "QxQ",
        "Qx",
        "xQ",
        "xQyQz",
        "QxSyQ",
        "QxEQyQ",
        "QQxQQ",
        "Qx\\QyQ",
        "QQQQ",
        "QQQ",
    ]
    texts += ["QxQ ", " QxQ", "QxQy", "QNAQ", "Q Q", "QxQQyQ", "\t", "QxQQ", "QEEQ", "'x'", '"x"']
    reals = ["", "1.5", "-0.0", "1e5", ".5", "5.", "+1.5", "NaN", "Infinity", "-Inf", "1e400", "1d"]
    reals += [" 1.5", "0.1", "1e-400", "Q1.5Q"]
    flags = ["", "true", "FALSE", "True", "1", "yes", "t", " true", "QtrueQ", "ſ"]  # noqa: RUF001
    whole = [["1", "x", "1.5", "true"]]
    for place, values in enumerate([numbers, texts, reals, flags]):
        whole += [[*whole[0][:place], value, *whole[0][place + 1 :]] for value in values]
    whole += [["1", text, "", flag] for text in texts for flag in flags]
    rows = [
        sep.join(row).replace("Q", quote).replace("S", sep).replace("E", escape) for row in whole
    ]
    others = [
        "",
        " ",
        "\t",
        sep * 3,
        sep,
        f"1{sep}x",
        sep * 4,
        f" {sep * 3}",
        "\r",
        f"1{sep * 3}\r",
    ]
    lines = [*rows, *others, *broken(rows, 1_000, f"{quote}{escape}{sep} \r\0")]

    decided = decided_as_spark_does(spark, how, lines)

    assert 100 < decided < len(lines) - 100


def test_lines_are_decoded_together_or_not_at_all() -> None:
    plain = PlainJson(pa.schema([("a", pa.int64())]))

    assert plain.decoded(b'{"a":1}\r\n\n{"b":"}{"}')["a"].to_pylist() == [1, None]
    assert plain.decoded(b"").num_rows == 0
    # Two objects in one line, and one over two lines: as many objects as lines.
    for text in (b'{"a":1}{"a":2}\n{"a":[{}\n]}', b'{"a":1}\nx', b'{"a":1}\n{"b":"\xff"}', b"{\0}"):
        with pytest.raises(UndecidedError):
            plain.decoded(text)


@pytest.mark.parametrize(
    "line", ["{}", '{"id":"x"}', '{"id":2}{}', "", "  ", "\\u007b}", '{"id":\r3}']
)
def test_spark_decodes_those_batches_alone_that_python_cannot(
    spark: SparkSession, tmp_path: Path, line: str
) -> None:
    good_lines = [f'{{"id":{n},"name":"n{n}","price":{n}.5}}' for n in range(3)]
    expected = [(n, f"n{n}", n + 0.5) for n in range(3)]
    (tmp_path / "a.json").write_text("\n".join(good_lines))
    (tmp_path / "b.json").write_text("\n".join([*good_lines, line, '{"price":1}']))
    (tmp_path / "c.json").write_text("\n".join(good_lines))

    rows = rows_of(spark, Files(str(tmp_path), format="json", schema=DDL))

    alone = by_spark(spark, [line], TextDecoding(format="json", schema=DDL))
    of_line = [tuple(row.values()) for row in alone.get(0, [])]
    assert good(rows) == [*expected, *expected, *of_line, (None, None, 1.0), *expected]
    assert len(rows) == 10 + (1 if line.strip() else 0)


def test_a_batch_has_texts_or_objects() -> None:
    plain = PlainJson(pa.schema([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]))
    lines = pa.array(["x", '{"a":1,"b":{"c":"ü"}}', "{}", " "], pa.string())
    batch = pa.RecordBatch.from_arrays([lines, pa.array(range(4))], names=["line", "n"])

    decided, undecided, blank, none = (
        with_objects(rows, "line", "o", plain)
        for rows in (batch.slice(1, 2), batch.slice(0, 2), batch.slice(3), batch.slice(4))
    )

    objects = [{"a": 1, "b": {"c": "ü"}}, {"a": None, "b": None}]
    assert decided.to_pydict() == {"line": [None, None], "n": [1, 2], "o": objects}
    assert undecided.to_pydict() == {
        "line": lines.to_pylist()[:2],
        "n": [0, 1],
        "o": [None, None],
    }
    assert blank.to_pydict() == {"line": [" "], "n": [3], "o": [None]}
    assert {one.schema for one in (decided, undecided, blank, none)} == {none.schema}


@pytest.mark.parametrize(
    "schema",
    [
        *("a float", "a decimal(9,2)", "a binary", "a map<string,int>", "a array<date>"),
        "a string COLLATE UTF8_LCASE",
    ],
)
def test_columns_of_other_types_are_left_to_spark(schema: str) -> None:
    assert plain_lines(TextDecoding(format="json", schema=schema)) is None
    assert plain_lines(csv_of(f"{schema}, b int")) is None


@pytest.mark.parametrize(
    "options", [{"sep": "||"}, {"sep": " "}, {"quote": "\0"}, {"dateFormat": "dd.MM.yyyy"}], ids=str
)
def test_csv_of_other_options_is_left_to_spark(options: dict[str, str]) -> None:
    assert plain_lines(csv_of("a int, b int", **options)) is None
    assert plain_lines(csv_of("a int")) is None  # A line of blanks would be a field.
    assert plain_lines(csv_of("a int, b int")) is not None


@pytest.mark.parametrize("format_", ["json", "csv"])
@pytest.mark.parametrize("parallelism", slow_but([1, 2], 2))
def test_both_ways_leave_the_same_state_and_report_the_same_lines(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    parallelism: int,
    format_: Literal["json", "csv"],
) -> None:
    caplog.set_level("INFO", "sluice.spark.stage")
    (tmp_path / "events").mkdir()
    times = [datetime.fromtimestamp(10**9 + n * 0.04, UTC).isoformat() for n in range(300)]
    if format_ == "json":
        head, malformed, timeless = [], '{"id":1', '{"id":1,"price":5}'
        rows = [f'{{"id":{n % 7},"price":{n},"at":"{at}"}}' for n, at in enumerate(times)]
    else:
        head, malformed, timeless = ["id,price,at"], "1,x,", "1,5,"
        rows = [f'{n % 7},"{n}",{at}' for n, at in enumerate(times)]
    for epoch, wrong in enumerate([[], [malformed, timeless], []]):
        body = "\r\n".join([*head, *rows[epoch * 100 : (epoch + 1) * 100], *wrong, ""])
        (tmp_path / "events" / f"{epoch}.{format_}").write_text(body, newline="")

    in_columns = played(spark, tmp_path / "columns", tmp_path / "events", parallelism)
    left = [line for line in caplog.messages if line.startswith("rows are left to Spark")]
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    in_rows = played(spark, tmp_path / "rows", tmp_path / "events", parallelism)

    assert left == ["rows are left to Spark checkpoint_id=2 stage=windows"]
    assert len(in_columns[0]) == 4
    assert checksums(in_columns[0]) == checksums(in_rows[0])
    assert in_columns[1:] == in_rows[1:]
    first = 101 + len(head)
    assert in_columns[1:] == ([(malformed, first)], [(1, 5, first + 1)])


def played(
    spark: SparkSession, root: Path, events: Path, parallelism: int
) -> tuple[list[CheckpointMetadata], list[tuple[str, int]], list[tuple[int, int, int]]]:
    """The checkpoints, and what became of the two wrong lines."""
    pipeline = Pipeline("both_ways", checkpointing=Checkpointing(interval=None))
    is_csv = any(events.glob("*.csv"))
    files = Files(
        str(events),
        format="csv" if is_csv else "json",
        schema="id bigint, price bigint, at timestamp",
        header=is_csv,
        bounded=False,
    )
    source = pipeline.source("events", files, event_time="t", out_of_orderness=timedelta(0))
    bids = source.select("id", "price", "at AS t").where("id >= 1")
    bids.key_by("id").window(
        "windows", Tumbling(timedelta(seconds=1)), dear=agg.max("price")
    ).key_by("window_start").aggregate("per_window", ids=agg.count())
    most = 103 if is_csv else 102
    job = a_submitted_job(pipeline, root, parallelism=parallelism, max_records_per_epoch=most)
    completed = completed_epochs(job, spark, drain=True)
    malformed, timeless = (
        open_side_table(job, f"windows.{name}").read().to_pylist()
        for name in ("malformed", "no_event_time")
    )
    return (
        completed,
        [(row["line"], row["record_number"]) for row in malformed],
        [(row["id"], row["price"], row["record_number"]) for row in timeless],
    )


def hostile_lines() -> list[str]:
    names = ["a", "d", "s", "b", "i", "t", "z", "A", "\\u0061", ""]
    whole, doubtful = (
        [shape % (name, value) for shape in shapes for name in names for value in VALUES]
        for shapes in (GOOD_SHAPES, SHAPES)
    )
    random = Random(SEED)
    broken = []
    for line in random.sample(whole, 1_000):
        at = random.randrange(len(line))
        broken.append(
            line[:at] + random.choice(['"', "{", "}", ",", "e", "-", ""]) + line[at + 1 :]
        )
    return [*OTHERS, *whole, *random.sample(doubtful, 1_000), *broken]


def physical_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Its rows with numbers for times and decimals: Python has no year 0."""
    return to_frame(table).select(pl.all().to_physical()).to_dicts()


def json_of(schema: str) -> TextDecoding:
    return TextDecoding(format="json", schema=schema)


def csv_of(schema: str, **options: str) -> TextDecoding:
    common = {"sep": ",", "quote": '"', "escape": '"', "nullValue": ""}
    return TextDecoding(format="csv", schema=schema, options=common | options)


def broken(texts: Sequence[str], count: int, letters: str) -> list[str]:
    """So many of *texts* with a letter put in, replaced or left out."""
    random, found = Random(SEED), []
    for text in random.choices([text for text in texts if text], k=count):
        at = random.randrange(len(text))
        found.append(text[:at] + random.choice([*letters, ""]) + text[at + random.randrange(2) :])
    return found


def decided_as_spark_does(spark: SparkSession, how: TextDecoding, lines: list[str]) -> int:
    """How many of *lines* Python decodes, each alone, all of them to the rows that Spark reads."""
    plain = plain_lines(how)
    assert plain is not None
    expected = by_spark(spark, lines, how)
    decided = 0
    for number, line in enumerate(lines):
        try:
            found = physical_rows(plain.decoded(line.encode()))
        except UndecidedError:
            continue
        decided += 1
        # As text, for a number may be a zero with a sign.
        assert repr(found) == repr(expected.get(number, [])), line
    return decided


def decoded(spark: SparkSession, lines: list[str], how: TextDecoding) -> DataFrame:
    rows = pa.table({"line": pa.array(lines, pa.string()), "number": pa.array(range(len(lines)))})
    origin = f"struct('f' AS partition, number AS record) AS {SOURCE}"
    return decoded_text(spark.createDataFrame(rows).selectExpr("line", origin), how)


def by_spark(
    spark: SparkSession, lines: list[str], how: TextDecoding = HOW
) -> dict[int, list[dict[str, object]]]:
    """The row of each line that Spark takes for a good one."""
    names = row_schema("the lines", how.schema)
    good = (
        decoded(spark, lines, how)
        .where(f"{MALFORMED_COLUMN} IS NULL")
        .selectExpr(f"{SOURCE}.record AS number", *names)
    )
    return {row.pop("number"): [row] for row in physical_rows(good.toArrow())}


NESTED = "n int, d date, `i.n` struct<x: double>, l array<int>, s string"
DEEP = "m int, a struct<n: int, `b.c`: struct<````: date>>"


@pytest.mark.parametrize(
    ("how", "line", "told"),
    [
        (json_of(NESTED), '{"n": "x", "d": "2026-02-30"}', "field 'n' is 'x', not int"),
        (json_of(NESTED), '{"d": "2026-02-30", "n": 1}', "field 'd' is '2026-02-30', not date"),
        (json_of(NESTED), '{"i.n": 3}', "field 'i.n' is '3', not struct<x:double>"),
        (json_of(NESTED), '{"i.n": {"x": "a"}}', "field 'i.n.x' is 'a', not double"),
        (json_of(NESTED), '{"l": ["a"], "more": 1}', "field 'l' is '[\"a\"]', not array<int>"),
        (json_of(NESTED), '{"n": 1}{}', ""),
        (json_of("`it's` int"), '{"it\'s": "%s"}', "field 'it's' is '%s', not int"),
        (json_of(DEEP), '{"a": {"n": "x"}}', "field 'a.n' is 'x', not int"),
        (json_of(DEEP), '{"a": {"n": "x"}, "m": "y"}', "field 'm' is 'y', not int"),
        (json_of(DEEP), '{"a": {"n": 1, "b.c": {"`": [1]}}}', "field 'a.b.c.`' is '[1]', not date"),
        (json_of(DEEP), '{"a": {"n": 1, "b.c": 2}}', "field 'a.b.c' is '2', not struct<`:date>"),
        (json_of("`it's` struct<n: int>"), '{"it\'s": {"n": "x"}}', ""),
        (json_of(DEEP), '{"a": 3}', "field 'a' is '3', not struct<n:int,b.c:struct<`:date>>"),
        (csv_of("n int, s string"), "x,y", "field 'n' is 'x', not int"),
        (csv_of("n int, s string"), "1,y,", "it has not 2 fields"),
        (csv_of("s string, n tinyint", sep="\\t"), "a\t128", "field 'n' is '128', not tinyint"),
        (csv_of("n int, s string"), '1,"y', "it has not 2 fields"),
    ],
)
def test_a_malformed_line_names_the_field(
    spark: SparkSession, how: TextDecoding, line: str, told: str
) -> None:
    (row,) = decoded(spark, [line], how).collect()

    what = "a JSON object" if how.format == "json" else "a CSV row"
    bare = f"not {what} of the source's schema"
    assert row[MALFORMED_COLUMN] == (f"{bare}: {told}" if told else bare)


def test_a_field_is_named_beside_columns_of_all_types(spark: SparkSession) -> None:
    atomic = ["boolean", "bigint", "double", "decimal(9, 2)", "date", "timestamp", "timestamp_ntz"]
    atomic += ["string", "binary", "interval day to second", "float"]
    nested = ["map<string, int>", "array<struct<a: int>>", "struct<a: map<string, int>>", "variant"]

    for how in (json_of(of_types("time", *atomic, *nested)), csv_of(of_types(*atomic))):
        line = '{"n": "x"}' if how.format == "json" else "x" + "," * len(atomic)
        (row,) = decoded(spark, [line], how).collect()
        assert row[MALFORMED_COLUMN].endswith("field 'n' is 'x', not int")


def of_types(*types: str) -> str:
    return ", ".join(["n int", *(f"c{place} {of}" for place, of in enumerate(types))])


@pytest.mark.parametrize(("format_", "reader"), [("json", "JSONOptions"), ("csv", "CSVOptions")])
def test_the_options_of_a_format_are_those_of_spark(
    spark: SparkSession, format_: str, reader: str
) -> None:
    jvm: Any = spark._jvm  # noqa: SLF001 - no API knows
    of_spark = getattr(getattr(jvm.org.apache.spark.sql.catalyst, format_), reader)

    assert [name for name in OPTIONS[format_] if not of_spark.isValidOption(name)] == []
