"""CSV files on the coordinator's side: lines, and a first line that has to name the columns."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sluice.connectors.files.encodings import BYTE_ORDER_MARK
from sluice.connectors.files.file_set import TAIL_BYTES
from sluice.connectors.files.lines import MAX_FIRST_LINE_BYTES, ScannedBlocks
from sluice.connectors.files.text import header_names
from sluice.declaration.places import Source, TextDecoding
from sluice.errors import ConfigurationError
from sluice.sources import Files
from tests.contract.source_rules import plan_all

DDL = "id int, name string, price decimal(10, 2)"


def a_source(root: Path, *, bounded: bool = True, delimiter: str = ",") -> Source:
    files = Files(
        str(root), format="csv", schema=DDL, header=True, bounded=bounded, delimiter=delimiter
    )
    return files.open({}, None)


@pytest.mark.parametrize(
    "line", [b"id,name,price", b"\xef\xbb\xbfID, Name ,PRICE\r", b'"id","name",price']
)
def test_a_header_that_names_the_columns_is_record_0(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(line + b"\n1,x,2.50\n")
    source = a_source(tmp_path)

    barrier = plan_all(source, parallelism=1)

    assert [(piece.first_record, piece.records) for piece in barrier.slices] == [(0, 2)]


def test_a_byte_order_mark_alone_has_no_header_to_check_and_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_bytes(BYTE_ORDER_MARK)

    barrier = plan_all(a_source(tmp_path))

    assert (barrier.slices, barrier.exhausted) == ((), True)


@pytest.mark.parametrize(
    ("delimiter", "line"),
    [
        (";", "id;name;price"),
        ("||", 'id||"name"||price'),
        ("\\t", 'id\tname\t"price"'),  # As Spark reads the option: a tab.
        ("\t", "id\tname\tprice"),
        ("\\u0001", "id\x01name\x01price"),
        (" ", "id name price"),
    ],
)
def test_a_header_is_split_at_any_delimiter_that_spark_knows(
    tmp_path: Path, delimiter: str, line: str
) -> None:
    (tmp_path / "a.csv").write_text(f"{line}\n")

    barrier = plan_all(a_source(tmp_path, delimiter=delimiter))

    assert barrier.records == 1


def test_a_quoted_name_may_hold_the_delimiter_and_quotes() -> None:
    how = TextDecoding(format="csv", schema="", options={"sep": "||", "escape": '"'})

    assert header_names('"a||b"||"say ""x"""||c"d||', how) == ["a||b", 'say "x"', 'c"d', ""]


@pytest.mark.parametrize("name", ["b.csv", "b.csv.gz"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"id,price,name", "id, price, name"),
        (b"id,name", "id, name"),
        (b"1,x,2.50", "1, x, 2.50"),
        (b"id;name;price", "id;name;price"),
        (b"", "none"),
    ],
)
def test_a_header_of_other_columns_is_named_with_both_lists(
    tmp_path: Path, name: str, line: bytes, found: str
) -> None:
    body = line + b"\n1,x,2.50\n"
    (tmp_path / "a.csv").write_bytes(b"id,name,price\n")
    (tmp_path / name).write_bytes(gzip.compress(body) if name.endswith("gz") else body)

    with pytest.raises(
        ConfigurationError,
        match=f"first line of {name} of .* columns {found}, and the schema id, name, price; corr",
    ):
        plan_all(a_source(tmp_path))


def test_a_file_without_a_line_break_names_no_columns_and_is_not_kept_whole(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_bytes(b"x" * (3 * MAX_FIRST_LINE_BYTES))

    with pytest.raises(ConfigurationError, match=r"first line of a.csv of .* more than 1048576 by"):
        plan_all(a_source(tmp_path))


def test_of_text_without_a_line_break_little_is_kept() -> None:
    blocks = ScannedBlocks([b"x" * 100_000] * 50, 0)

    assert sum(len(block) for block in blocks) == 5_000_000
    assert len(blocks.first_line) == MAX_FIRST_LINE_BYTES + 1
    assert blocks.tail(5_000_000) == b"x" * TAIL_BYTES


def test_a_header_is_checked_when_its_line_is_whole_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,name")
    source = a_source(tmp_path, bounded=False)
    first = plan_all(source)
    path.write_text("id,name,price\n1,x,2\n")
    second = source.plan(first.position, max_records=1, parallelism=1)
    third = plan_all(source, second.position)

    assert [len(barrier.slices) for barrier in (first, second, third)] == [0, 1, 1]
    assert third.slices[0].first_record == 1


def test_one_huge_file_is_shared_by_all_subtasks(tmp_path: Path) -> None:
    text = b"id,name,price\n" + b"".join(b"%d,name,1.00\n" % n for n in range(50_000))
    (tmp_path / "a.csv").write_bytes(text)

    slices = a_source(tmp_path).plan((), max_records=None, parallelism=8).slices

    assert len(slices) == 8
    assert max(piece.records for piece in slices) < 50_001 / 8 * 1.01
    assert [piece.end for piece in slices[:-1]] == [piece.start for piece in slices[1:]]
