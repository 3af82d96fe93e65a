"""A coordinator that is killed while it commits to an Iceberg table."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sluice.core.answers import Committable
from tests.contract.sink_case import JOB, publish, rows, seen
from tests.iceberg_catalog import case_in
from tests.processes.conftest import run_python

KILLED = """
import os, signal, sys
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
from tests.contract.sink_case import JOB, staged_rows
from tests.iceberg_catalog import a_sink

folder, moment, key = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
sink = a_sink(folder, *key, create=True)
staged = staged_rows(sink, 2, 2, 3)
print(staged.file, staged.size_bytes, flush=True)
commit = SqlCatalog.commit_table

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(*arguments):
    if moment == "before":
        die()
    if moment == "inside":
        SqlCatalog._write_metadata = lambda *_, **__: die()
    commit(*arguments)
    die()

SqlCatalog.commit_table = dying
sink.commit(JOB, 2, 1, [staged])
"""


@pytest.mark.parametrize(
    ("moment", "key"), [("before", ()), ("inside", ()), ("after", ()), ("inside", ("id",))]
)
def test_a_commit_that_was_killed_is_finished_once(
    tmp_path: Path, moment: str, key: tuple[str, ...]
) -> None:
    case = case_in(tmp_path, *key, create=True)
    publish(case.open(), 1, None, rows(1, 2) if key else rows(1))

    killed = run_python(KILLED, str(tmp_path), moment, *key)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert case.open().is_published(2) == (moment == "after")
    file, size_bytes = killed.stdout.split()
    staged = Committable(sink="sales", file=file, rows=2, size_bytes=int(size_bytes))
    for _ in range(2):
        case.open().commit(JOB, 2, 1, [staged])
    assert seen(case) == rows(1, 2, 3)
