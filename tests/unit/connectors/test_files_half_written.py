"""Files that are still being written: read when they are whole, and not waited for in vain."""

from __future__ import annotations

import gzip
import io
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError

NUMBERS = range(2000)


KnownSource = ParquetSource | AvroSource | FilesSource


def a_parquet_file() -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(NUMBERS)}), body)
    return body.getvalue()


def an_avro_file() -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    body = io.BytesIO()
    fastavro.writer(body, schema, [{"n": n} for n in NUMBERS], sync_interval=1000)
    return body.getvalue()


TEXT = b"".join(b"%d\n" % n for n in NUMBERS)
KINDS: dict[str, tuple[Callable[..., KnownSource], bytes]] = {
    "a.parquet": (ParquetSource, a_parquet_file()),
    "a.avro": (AvroSource, an_avro_file()),
    "a.gz": (FilesSource, gzip.compress(TEXT)),
    "a.zst": (FilesSource, zstandard.compress(TEXT)),
}


def plan_all(source: KnownSource, position: SourcePosition = ()) -> Barrier:
    return source.plan(position, max_records=None, parallelism=1)


def silent_for(path: Path, seconds: int) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cut", [2, 0.4, 0.95])
def test_an_unbounded_source_waits_for_the_whole_file(
    tmp_path: Path, name: str, cut: float, caplog: pytest.LogCaptureFixture
) -> None:
    kind, body = KINDS[name]
    source = kind(str(tmp_path), bounded=False)
    size = int(cut * len(body)) if cut < 1 else int(cut)
    (tmp_path / name).write_bytes(body[:size])

    with caplog.at_level(logging.INFO):
        first = source.plan((), max_records=5, parallelism=1)
    (tmp_path / name).write_bytes(body)
    second = source.plan(first.position, max_records=5, parallelism=1)
    third = plan_all(source, second.position)

    assert (first.slices, first.is_backlog, first.exhausted) == ((), False, False)
    assert [record.getMessage() for record in caplog.records] == [
        f"file is not whole yet, left for a later epoch file={name} size_bytes={size}"
    ]
    assert (second.records, third.records) == (5, len(NUMBERS) - 5)


@pytest.mark.parametrize("name", KINDS)
def test_a_bounded_source_and_one_out_of_patience_name_the_file(tmp_path: Path, name: str) -> None:
    kind, body = KINDS[name]
    path = tmp_path / name
    path.write_bytes(body[: len(body) // 2])

    with pytest.raises(ConfigurationError, match=f"{name} of .* when it is whole"):
        plan_all(kind(str(tmp_path)))
    silent_for(path, 3590)
    assert plan_all(kind(str(tmp_path), bounded=False)).slices == ()
    silent_for(path, 3610)
    with pytest.raises(ConfigurationError, match=f"{name} of .*; it was not written to .* 3600 s"):
        plan_all(kind(str(tmp_path), bounded=False))
    with pytest.raises(ConfigurationError, match="it was not written to for 0 s"):
        plan_all(kind(str(tmp_path), bounded=False, give_up_after_s=0))


@pytest.mark.parametrize("name", KINDS)
def test_files_behind_a_half_written_one_are_read(tmp_path: Path, name: str) -> None:
    kind, body = KINDS[name]
    (tmp_path / name).write_bytes(body[:-7])
    (tmp_path / f"b-{name}").write_bytes(body)
    source = kind(str(tmp_path), bounded=False)

    assert {piece.partition for piece in plan_all(source).slices} == {f"b-{name}"}
    assert source.schema().names in (["n"], ["line", "file", "line_number"])


def test_a_compressed_file_that_somebody_has_just_opened_is_not_taken_for_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.gz"
    path.touch()
    source = FilesSource(str(tmp_path), bounded=False)
    first = plan_all(source)
    path.write_bytes(gzip.compress(TEXT))
    whole = plan_all(source, first.position)
    path.write_bytes(b"")
    silent_for(path, 3610)
    given_up = plan_all(source)

    assert [one.sealed for one in first.position] == [False]
    assert whole.records == len(NUMBERS)
    assert [one.sealed for one in given_up.position] == [True]


def test_a_file_of_another_format_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not at all what was declared, by no means")
    for kind in (ParquetSource, AvroSource):
        with pytest.raises(ConfigurationError, match=r"notes of .* is not a whole"):
            plan_all(kind(str(tmp_path), bounded=False))
