"""``sluice backfill``: partitions are read again, in an epoch of their own."""

from __future__ import annotations

import re
import secrets
from typing import Literal

import pytest

from sluice.coordinator.backfill import plan_backfill
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, SourceUnreadable
from sluice.job.job import Job, open_job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.store.open import StoreLocation, open_store
from tests.cli.conftest import Sluice
from tests.subtasks import take_checkpoint

Replaced = Literal["fail", "by partition"]


@pytest.fixture(name="lake")
def _lake() -> StoreLocation:
    """A year's days, a line of JSON each."""
    place = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    store = open_store(place)
    for day in range(1, 366):
        store.put(f"day={day}/rows.json", b'{"n": 1}\n')
    return place


def a_pipeline(place: StoreLocation, replaced: Replaced = "by partition") -> Pipeline:
    pipeline = Pipeline("sales")
    spec = Files(f"{place.root}/", "json", "n bigint", bounded=False, replaced=replaced)
    totals = pipeline.source("days", spec).key_by("day").aggregate("totals", n=agg.sum("n"))
    totals.sink("out", FilesTable(changelog=True))
    return pipeline


@pytest.fixture(name="job")
def _job(lake: StoreLocation) -> Job:
    job = open_job(a_pipeline(lake), StoreLocation(root=f"memory://{secrets.token_hex(6)}"))
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    return job


@pytest.fixture(autouse=True)
def declared(sluice: Sluice, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"sales": job.pipeline}.__getitem__)


def test_a_dry_run_says_what_would_be_taken_back_and_read(
    sluice: Sluice, job: Job, lake: StoreLocation
) -> None:
    open_store(lake).put("day=60/rows.json", b'{"n": 2}\n{"n": 3}\n')
    before = job.state()

    said = sluice("backfill", "sales", "--input", "day=60..61", "--dry-run")
    found = sluice("backfill", "sales", "--input", "day=60..1", "--dry-run", "--json").json

    assert said.out == (
        "days: 2 rows of 2 files would be taken back, 3 rows of 2 files read\n"
        "these stages get them: totals\n"
    )
    assert found["sources"][0]["rows"] == 3
    assert job.state() == before


def test_a_correction_of_one_day_costs_that_day(
    sluice: Sluice, job: Job, lake: StoreLocation
) -> None:
    open_store(lake).put("day=60/rows.json", b'{"n": 2}\n')
    open_store(lake).put("day=61/rows.json", b'{"n": 2}\n')

    sluice("backfill", "sales", "--input", "day=60", "--no-wait")
    outcome = trigger(job)

    assert isinstance(outcome, Triggered)
    assert outcome.is_adopted
    (cut,) = outcome.plan.sources
    assert [(piece.partition, piece.is_taken_back) for piece in cut.slices] == [
        ("day=60/rows.json", True),
        ("day=60/rows.json", False),
    ]
    assert cut.copies["day=60/rows.json"] != cut.taken_back["day=60/rows.json"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("dt=1", r"'dt=1' names no column of the folders of .*, which are day="),
        ("day=x", r"'x' in 'day=x' is no int"),
        ("day=900", r"no file that was read, or is there, is in day=900"),
        ("", r"--input is missing"),
    ],
)
def test_words_that_choose_nothing_are_refused(sluice: Sluice, words: str, sentence: str) -> None:
    assert re.search(sentence, sluice("backfill", "sales", "--input", words).error)


def test_input_that_may_not_be_replaced_is_not_read_again(
    sluice: Sluice, lake: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_job(a_pipeline(lake, "fail"), StoreLocation("memory://another"))
    submit(other, configure(other.pipeline, {}))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"sales": other.pipeline}.__getitem__)
    answer = sluice("backfill", "sales", "--input", "day=60", "--root", other.location.root)

    assert (
        "'days' does not declare input that is replaced, so day=60 cannot be read" in answer.error
    )


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ("fail", "by partition", "'days' takes rows back now, and of what it has read the root"),
        ("by partition", "fail", "'days' does not take rows back any more"),
    ],
)
def test_a_source_takes_rows_back_from_its_first_record_on_or_never(
    lake: StoreLocation, before: Replaced, now: Replaced, sentence: str
) -> None:
    root = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    job = open_job(a_pipeline(lake, before), root)
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    open_store(lake).put("day=60/rows.json", b'{"n": 2}\n')

    with pytest.raises(SourceUnreadable, match=sentence):
        trigger(open_job(a_pipeline(lake, now), root))


def test_each_source_takes_the_words_that_name_its_columns(lake: StoreLocation) -> None:
    pipeline = a_pipeline(lake)
    other = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    open_store(other).put("dt=1/rows.json", b'{"n": 1}\n')
    spec = Files(f"{other.root}/", "json", "n bigint", bounded=False, replaced="by partition")
    totals = pipeline.source("others", spec).key_by("dt").aggregate("sums", n=agg.sum("n"))
    totals.sink("sums_out", FilesTable(changelog=True))
    job = open_job(pipeline, StoreLocation(root=f"memory://{secrets.token_hex(6)}"))
    submit(job, configure(pipeline, {}))
    take_checkpoint(job)

    def read(*words: str) -> list[tuple[str, int]]:
        return [(one.source, one.files) for one in plan_backfill(job, words).sources]

    assert read("day=60") == [("days", 1)]
    assert read("dt=1") == [("others", 1)]
    assert read("dt=1", "day=1..3") == [("days", 3), ("others", 1)]
    with pytest.raises(ConfigurationError, match="'month=1' names no column of the folders"):
        read("dt=1", "month=1")
