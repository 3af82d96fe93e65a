"""A text that is compressed very well is planned and read in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
import zstandard

from tests.processes.conftest import run_python


@pytest.mark.parametrize("suffix", ["zst", "gz", "bz2", "xz"])
def test_a_text_that_is_compressed_very_well_takes_little_memory(
    tmp_path: Path, suffix: str
) -> None:
    """256 MiB of text in some kB, planned and read by a process that may have 100 MiB more."""
    lines = (b"x" * 1023 + b"\n") * 1024
    bodies = {
        "zst": lambda: zstandard.compress(lines * 256),
        "gz": lambda: gzip.compress(lines, 1) * 256,
        "bz2": lambda: bz2.compress(lines, 1) * 256,
        "xz": lambda: lzma.compress(lines) * 256,
    }
    body = bodies[suffix]()
    (tmp_path / f"log.{suffix}").write_bytes(body)
    code = f"""
import resource
from sluice.connectors.files.text import FilesSource
import numpy, pyarrow.compute
source = FilesSource({str(tmp_path)!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
barrier = source.plan((), max_records=None, parallelism=2)
rows = sum(batch.num_rows for piece in barrier.slices for batch in source.read(piece))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = run_python(code)

    assert done.returncode == 0, done.stderr
    rows, more_mib = map(int, done.stdout.split())
    assert rows == 256 * 1024
    assert more_mib < 100
