"""Spark starts a copy of a task that is slow, on another machine, and kills the slow one."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.cluster.conftest import a_client, whole
from tests.cluster.declared.stalled import COPY, STALLED

pytestmark = whole
EVENTS = 60_000
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def test_the_rows_of_a_task_and_of_its_copy_arrive_once(tmp_path: Path, root: str) -> None:
    with a_client(tmp_path, workers=1) as client:
        client.cluster.add_worker("worker-2", host="127.0.0.2")  # Copies run on other hosts only.
        client.cluster.wait_for_workers(2)
        with client.cluster.connect_server(SPECULATION) as remote:
            given = ("--events", str(EVENTS), "--folder", str(tmp_path), "--parallelism", "2")
            output = ("--output", "result.parquet")
            client.sluice("run", "stalled", "--remote", remote, "--root", root, *given, *output)

        rows = pl.read_parquet(client.folder / "result.parquet")

    assert (tmp_path / STALLED).read_text() != (tmp_path / COPY).read_text()
    assert rows.height == EVENTS
