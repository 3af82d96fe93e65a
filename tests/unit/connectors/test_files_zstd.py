"""Zstandard beside gzip: any cut, several frames, bounded memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from sluice.connectors.files import FilesSource
from sluice.errors import ConfigurationError
from tests.contract.conftest import environment_with_sluice
from tests.contract.source_rules import check_replay


def frames(*texts: bytes) -> bytes:
    return b"".join(zstandard.compress(text) for text in texts)


@pytest.mark.parametrize("cuts", [[], [(1, 1)] * 9, [(2, 2)] * 3, [(4, 3)]])
def test_every_cut_of_several_frames_gives_the_same_lines(
    tmp_path: Path, cuts: list[tuple[int | None, int]]
) -> None:
    (tmp_path / "a.zst").write_bytes(frames(b"1\n2", b"2\n", b"", b"3\nlast"))
    (tmp_path / "b.zstd").write_bytes(frames(b""))
    (tmp_path / "c.zst").write_bytes(b"")
    expected = [
        {"line": line, "file": "a.zst", "line_number": number}
        for number, line in enumerate(["1", "22", "3", "last"], 1)
    ]

    check_replay(FilesSource(str(tmp_path)), cuts, expected, files=3)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (frames(b"one\n" * 99)[:-3], "ends in the middle of its text"),
        (frames(b"one\n") + frames(b"two\n")[:3], "ends in the middle of its text"),
        (b"one\n" * 9, "is not a zstd file"),
        (frames(b"one\n") + b"two\n" * 9, "is not a zstd file"),
    ],
)
def test_a_file_that_cannot_be_decompressed_is_named(
    tmp_path: Path, body: bytes, sentence: str
) -> None:
    (tmp_path / "log.zst").write_bytes(body)

    with pytest.raises(ConfigurationError, match=rf"log\.zst of file://{tmp_path} {sentence}"):
        FilesSource(str(tmp_path)).plan((), max_records=None, parallelism=1)


@pytest.mark.parametrize("suffix", ["zst", "gz"])
def test_a_text_that_is_compressed_very_well_takes_little_memory(
    tmp_path: Path, suffix: str
) -> None:
    """256 MiB of text in some kB, planned and read by a process that may have 100 MiB more."""
    lines = (b"x" * 1023 + b"\n") * 1024
    body = gzip.compress(lines, 1) * 256 if suffix == "gz" else zstandard.compress(lines * 256)
    (tmp_path / f"log.{suffix}").write_bytes(body)
    code = f"""
import resource
from sluice.connectors.files import FilesSource
import numpy, pyarrow.compute
source = FilesSource({str(tmp_path)!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
barrier = source.plan((), max_records=None, parallelism=2)
rows = sum(batch.num_rows for piece in barrier.slices for batch in source.read(piece))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_with_sluice(),
        capture_output=True,
        text=True,
        check=True,
    )

    rows, more_mib = map(int, done.stdout.split())
    assert rows == 256 * 1024
    assert more_mib < 100
