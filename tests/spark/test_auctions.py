"""The demo's pipeline on a real local Spark, against one query over all events in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.core.configuration import JobStatus
from sluice.job.job import Job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, run_epochs
from tests.best_auctions import best_auctions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 20_000


def test_the_ranking_equals_one_query_over_all_events(
    spark: SparkSession, submitted: Callable[..., Job]
) -> None:
    job = submitted("auctions", parallelism=2, max_records=9_000, events=EVENTS)
    epochs: list[Epoch] = []

    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    table = open_result_table(job, job.state().configuration.params).read()
    ranking = table.sort_by([("category", "ascending"), ("rank", "ascending")]).to_pylist()
    assert status is JobStatus.FINISHED
    assert len(epochs) == 3
    assert ranking == best_auctions(EVENTS)
