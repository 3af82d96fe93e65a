"""Files whose names only grow: each line is read once while they come and go."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import SourcePosition
from tests.examples import TIMES
from tests.property.files.formats import rows_of


@pytest.mark.parametrize("seed", range(20 * TIMES))
def test_every_line_is_read_once_while_files_come_and_go(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    position: SourcePosition = ()
    written: list[str] = []
    read: list[str] = []
    number = 0
    for _ in range(40):
        for _ in range(random.randrange(4)):
            number += random.random() < 0.7
            lines = [f"{number}:{len(written) + n}" for n in range(random.randrange(4))]
            written += lines
            with (tmp_path / f"log-{number:06d}").open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
        most = random.choice([1, 2, 5, None])
        barrier = source.plan(position, max_records=most, parallelism=2)
        assert barrier == source.plan(position, max_records=most, parallelism=2)
        read += rows_of(source, barrier)
        position = barrier.position
    read += rows_of(source, source.plan(position, max_records=None, parallelism=1))

    assert read == written
