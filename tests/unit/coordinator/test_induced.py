"""Externally induced barriers: the end of an epoch is decided elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import a_job
from sluice.connectors.files.text import FilesSource
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import NotTriggered, Triggered, trigger
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.subtasks import take_checkpoint


def an_induced_job() -> Job:
    pipeline = Pipeline("auctions")
    events = pipeline.source("events", Nexmark(100), induced=True)
    events.transform("read", lambda rows: rows).sink("results", FilesTable())
    job = a_job(pipeline)
    submit(job, configure(pipeline, {}))
    return job


def test_a_checkpoint_reads_to_the_barrier_it_was_given() -> None:
    job = an_induced_job()

    outcome = trigger(job, is_periodic=False, barriers={"events": {"nexmark": 7}})

    assert isinstance(outcome, Triggered)
    (cut,) = outcome.plan.sources
    assert (cut.position[0].offset, cut.records, cut.exhausted) == (7, 7, False)


def test_without_a_barrier_the_source_stands_still() -> None:
    job = an_induced_job()
    take_checkpoint(job, is_periodic=False, barriers={"events": {"nexmark": 7}})

    assert isinstance(trigger(job), NotTriggered)
    outcome = trigger(job, is_periodic=False)

    assert isinstance(outcome, Triggered)
    assert (outcome.plan.records, outcome.plan.sources[0].position[0].offset) == (0, 7)


@pytest.mark.parametrize(
    ("barriers", "sentence"),
    [
        (
            {"event": {"nexmark": 1}},
            "'event', which is no stream source of 'auctions'; those are e",
        ),
        ({"events": {"p0": 1}}, "names partition 'p0' of the Nexmark source, which has nexmark"),
        ({"events": {"nexmark": 101}}, "offset 101 of 'nexmark' .* from 7, .* to 100, what can"),
        ({"events": {"nexmark": 6}}, "offset 6 of 'nexmark' .* from 7, where the last one was"),
    ],
)
def test_a_barrier_outside_of_what_can_be_read_is_refused(
    barriers: dict[str, dict[str, int]], sentence: str
) -> None:
    job = an_induced_job()
    take_checkpoint(job, is_periodic=False, barriers={"events": {"nexmark": 7}})
    before = job.state()

    with pytest.raises(ConfigurationError, match=sentence):
        trigger(job, is_periodic=False, barriers=barriers)

    assert job.state() == before


def test_a_file_is_read_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "b.txt").write_text("four\n")
    source = FilesSource(str(tmp_path), format="text", bounded=True)

    first = source.plan((), max_records=None, parallelism=1, until={"a.txt": 8})
    second = source.plan(first.position, max_records=None, parallelism=1)

    assert [(piece.partition, piece.end) for piece in first.slices] == [("a.txt", 8)]
    assert (first.records, first.exhausted) == (2, False)
    assert (second.records, second.exhausted) == (2, True)
