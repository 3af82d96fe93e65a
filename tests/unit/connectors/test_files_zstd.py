"""Zstandard files: any cut, several frames, damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from sluice.connectors.files.text import FilesSource
from sluice.errors import ConfigurationError
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
