"""The request budget of DESIGN section 3, whether a stage has one subtask or a hundred.

``pytest -s`` shows the tables.
"""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.counting import measure, request_table
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.store.open import StoreLocation

BUDGET = {
    "trigger": 5,
    "stage count_bids": 4,  # However many subtasks it has, one is its answer.
    "stage count_again": 5,
    "finalize": 11,  # One asks whether the table can take the rows, two keep the statistics.
    "commit": 10,  # With one subsumed checkpoint to delete, and one to keep.
}
LISTS = {"trigger": 1, "finalize": 1, "commit": 2}  # One for each append, and one for the table.


def a_pipeline(parallelism: int, **checkpointing: Any) -> Pipeline:
    """Every subtask has state to keep, and rows to send to the next stage or to publish."""
    usual = {"max_records_per_epoch": 5_000, "num_retained": 1}
    pipeline = Pipeline("bids", Checkpointing(**usual | checkpointing), parallelism=parallelism)
    events = pipeline.source("events", Nexmark(columns=("bid_auction",))).key_by("bid_auction")
    first = events.aggregate("count_bids", n=agg.count()).key_by("bid_auction")
    first.aggregate("count_again", n=agg.count()).sink(
        "results", FilesTable(upsert_key=("bid_auction",))
    )
    return pipeline


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    return StoreLocation(root=f"memory://{secrets.token_hex(6)}")


@pytest.mark.parametrize(
    ("parallelism", "threshold", "of_a_subtask"),
    [
        (1, 0, {"put": 2}),
        (10, 0, {"put": 2}),
        (1, 20_480, {"put": 1}),
        (100, 20_480, {"put": 1}),
    ],
)
def test_a_checkpoint_keeps_to_its_budget_of_requests(
    location: StoreLocation, parallelism: int, threshold: int, of_a_subtask: dict[str, int]
) -> None:
    """State below the threshold travels inside the ack."""
    costs = measure(a_pipeline(parallelism, data_inline_threshold=threshold), location)[-1]

    print(f"\n{parallelism} subtasks a stage, state in files from {threshold} bytes")  # noqa: T201
    print(request_table(costs.acts | {"a subtask": max(costs.subtasks, key=Counter.total)}))  # noqa: T201
    assert len(costs.subtasks) == 2 * parallelism
    assert all(asked <= Counter(of_a_subtask) for asked in costs.subtasks)
    assert sum(of_a_subtask.values()) <= 2  # Its ack is none.
    assert {act: asked["list"] for act, asked in costs.acts.items() if asked["list"]} == LISTS
    assert {act: asked.total() for act, asked in costs.acts.items()} == BUDGET
