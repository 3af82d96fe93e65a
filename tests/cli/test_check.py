"""``sluice check`` asks each source whether there is something to read, one's own included."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.cli.conftest import Sluice
from tests.own_page import names_of_the_page


def test_a_place_of_ones_own_where_nothing_is_is_named(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise ConfigurationError("there is no table events in /nowhere; create it")

    source = names_of_the_page()["Rows"]
    pipeline = Pipeline("auctions")
    rows = pipeline.source("events", source("/nowhere"))
    rows.key_by("id").aggregate("counts", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    assert "counts" in sluice("check", "auctions", "--root", "memory://own").out
    monkeypatch.setattr(source, "check_place", missing, raising=False)
    assert (
        "there is no table events in /nowhere"
        in sluice("check", "auctions", "--root", "memory://own").error
    )


def test_a_stage_whose_sums_depend_on_the_order_of_its_rows_is_named(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = Pipeline("auctions")
    pq.write_table(pa.table({"id": [1], "paid": [0.5]}), tmp_path / "orders.parquet")
    orders = pipeline.source("orders", Files(str(tmp_path), format="parquet")).key_by("id")
    for uid, total in (("counts", agg.count()), ("spent", agg.sum("paid"))):
        orders.aggregate(uid, total=total).sink(f"{uid}_table", FilesTable(upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    said = sluice("check", "auctions", "--root", "memory://floats").err

    assert [line.partition(",")[0] for line in said.splitlines()] == [
        "note: auctions: stage 'spent' computes with floats"
    ]


@pytest.mark.parametrize("command", [("check",), ("run", "--epochs", "1")], ids=["check", "run"])
def test_a_table_at_another_sinks_default_folder_is_that_table(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    pipeline = Pipeline("auctions")
    (tmp_path / "orders.csv").write_text("1\n")
    source = Files(str(tmp_path), format="csv", schema="id int")
    counts = pipeline.source("orders", source).key_by("id").aggregate("counts", n=agg.count())
    counts.sink("one", FilesTable(upsert_key=("id",)))
    counts.sink("other", FilesTable("memory://tables/auctions/tables/one", upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    name, *options = command
    said = sluice(name, "auctions", *options, "--root", "memory://tables").error

    assert said.startswith(
        "error: sinks 'one' and 'other' write one table, memory://tables/auction"
    )
