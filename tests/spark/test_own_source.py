"""The source of the page "A connector of one's own" gets all that the sources of Sluice get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.results import Replace
from sluice.errors import ConfigurationError
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.exchange.reading import SourceRows
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.spark import deployment
from sluice.spark.deployment import Exchange, exchange_of
from sluice.spark.tasks import StageRun
from tests.own_page import insert, names_of_the_page
from tests.spark.folder_job import FolderJob

UPSERTS = FilesTable(upsert_key=("name",))
GOOD = [(1, "a", 3), (2, "b", 4), (3, "a", 5)]


@pytest.fixture(name="asked")
def _asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns that each exchange asks of its source; none where Spark reads."""
    found: list[list[str]] = []

    def watched(run: StageRun) -> Exchange | None:
        exchange = exchange_of(run)
        if exchange is not None:
            (feed,) = exchange.feeds
            assert isinstance(feed.rows, SourceRows)
            found.append(feed.compiled.paths)
        return exchange

    monkeypatch.setattr(deployment, "exchange_of", watched)
    return found


def rows_of(path: Path) -> Any:
    return names_of_the_page()["Rows"](str(path))


def declare_totals(job: FolderJob, path: Path, **how: Any) -> None:
    rows = job.pipeline.source("events", rows_of(path), **how)
    rows.key_by("name").aggregate("totals", n=agg.sum("price")).sink("out", UPSERTS)


def totals(job: FolderJob) -> list[tuple[object, ...]]:
    return sorted(job.table("out").select("name", "n").rows())


def test_only_the_columns_that_are_asked_for_are_read_past_the_jvm(
    job: FolderJob, tmp_path: Path, asked: list[list[str]]
) -> None:
    insert(tmp_path / "db", GOOD)
    declare_totals(job, tmp_path / "db")

    job.epoch()

    assert asked == [["name", "price"]]
    assert totals(job) == [("a", 8), ("b", 4)]


def test_a_source_that_yields_all_its_columns_is_read_like_one_that_does_not(
    job: FolderJob, tmp_path: Path
) -> None:
    names = names_of_the_page()
    exec(  # noqa: S102 - as the page's own code
        "class Whole(Rows):\n"
        "    def read(self, piece, columns=None):\n"
        "        yield from Rows.read(self, piece)\n",
        names,
    )
    insert(tmp_path / "db", GOOD)
    rows = job.pipeline.source("events", names["Whole"](str(tmp_path / "db")))
    rows.key_by("name").aggregate("totals", n=agg.sum("price")).sink("out", UPSERTS)
    rows.select("upper(name) AS name").transform("as_is", lambda frame: frame).sink(
        "all", FilesTable()
    )

    job.epoch()

    assert totals(job) == [("a", 8), ("b", 4)]
    assert sorted(job.table("all").rows()) == [("A",), ("A",), ("B",)]


def test_malformed_rows_go_to_their_side_output(job: FolderJob, tmp_path: Path) -> None:
    insert(tmp_path / "db", [*GOOD, (4, "b", "much")])
    declare_totals(job, tmp_path / "db")

    job.epoch()

    assert totals(job) == [("a", 8), ("b", 4)]
    (bad,) = open_side_table(job.job, "totals.malformed").read().to_pylist()
    assert (bad["partition"], bad["record_number"], bad["reason"], bad["line"], bad["name"]) == (
        "events",
        4,
        "price is no number",
        "much",
        "b",
    )


def test_a_malformed_row_needs_no_text_of_its_own(job: FolderJob, tmp_path: Path) -> None:
    names = names_of_the_page()
    del names["COLUMNS"]["_raw"]
    insert(tmp_path / "db", [*GOOD, (4, "b", "much")])
    code = job.pipeline.spark(
        "code",
        lambda rows: rows.groupBy("name").agg({"price": "sum"}).toDF("name", "n"),
        reads={"rows": job.pipeline.source("events", names["Rows"](str(tmp_path / "db")))},
        schema="name string, n bigint",
        result=Replace("name"),
    )
    code.sink("out", UPSERTS)

    job.epoch()

    assert totals(job) == [("a", 8), ("b", 4)]
    (bad,) = open_side_table(job.job, "code.malformed").read().to_pylist()
    assert (bad["record_number"], bad["reason"]) == (4, "price is no number")


def declare_lookup(job: FolderJob, path: Path) -> None:
    prices = job.pipeline.source("events", rows_of(path), table=True)
    located = job.rows().lookup("priced", prices, on={"item": "name"}, add=("price",))
    located.sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"item": ["b", "z"]}))


def test_it_is_a_table_to_look_up(job: FolderJob, tmp_path: Path) -> None:
    insert(tmp_path / "db", GOOD[:2])
    declare_lookup(job, tmp_path / "db")
    job.epoch()
    insert(tmp_path / "db", [(4, "z", 9)])
    job.write("2.parquet", pl.DataFrame({"item": ["z"]}))
    job.epoch()

    assert job.table("out").rows() == [("b", 4), ("z", 9)]


def test_a_malformed_row_of_a_table_is_named(job: FolderJob, tmp_path: Path) -> None:
    insert(tmp_path / "db", [*GOOD[:2], (3, "c", "much")])
    declare_lookup(job, tmp_path / "db")

    with pytest.raises(
        ConfigurationError,
        match="record 3 of events, which table source 'events' reads, is malformed: price is no",
    ):
        job.epoch()


def test_after_a_kill_and_a_restore_every_row_counts_once(
    job: FolderJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(tmp_path / "db", GOOD)
    declare_totals(job, tmp_path / "db")
    first = job.epoch()
    insert(tmp_path / "db", [(4, "b", 6)])
    with monkeypatch.context() as patch:
        patch.setenv(FAULT_VARIABLE, "kill-worker stage=totals")
        job.failure()
    insert(tmp_path / "db", [(5, "c", 7)])

    restored = restore(job.job, Latest())
    job.epoch()

    assert restored.checkpoint_id == first.checkpoint_id
    assert totals(job) == [("a", 8), ("b", 10), ("c", 7)]
