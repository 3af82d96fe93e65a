"""CSV by real Spark: what is a row, what is malformed, and with which file and line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.sources import Files
from sluice.spark.frames import decoded_text, read_slices

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

DDL = "id int, name string, price double"


def rows_of(spark: SparkSession, files: Files) -> list[Row]:
    source = files.open({}, None)
    assert source.decoding is not None
    barrier = source.plan((), max_records=None, parallelism=3)
    lines = read_slices(spark, source, barrier.slices, 3)
    rows = decoded_text(lines, source.decoding).collect()
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


def test_options_of_json_hold_within_a_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{'id': 1} // one\n{id: 2} /* two */\n{id: 3} /* open\n")
    options = {"allowComments": "true", "allowUnquotedFieldNames": "true"}

    rows = rows_of(spark, Files(str(tmp_path), format="json", schema=DDL, options=options))

    assert good(rows) == [(1, None, None), (2, None, None)]
    assert bad(rows) == [("a.json", 3, "{id: 3} /* open")]
