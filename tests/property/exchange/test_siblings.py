"""Other readers of a stage's input do not change a byte of its output.

Method: a random chain of stages, declared twice, once with a random sibling somewhere; both run
with the real subtasks.  Every stage of the chain has a reader either way, so it sends its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.jobs import a_running_job, trigger_one
from harness.no_spark import Rows, stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.answers import Ack
from sluice.core.configuration import JobStatus
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from tests.examples import examples

EVENTS, EPOCH = 90, 45
COLUMNS = ("bid_auction", "bidder", "price")


@dataclass(frozen=True)
class Declared:
    """A stream of a chain, and the columns that it has; ``price`` is always among them."""

    stream: Stream
    columns: tuple[str, ...]

    def others(self, *columns: str) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in columns)


Step = Callable[[Declared, str, str], Declared]  # The chain so far, the next uid, a column.


def passes(chain: Declared, uid: str, _: str) -> Declared:
    return Declared(chain.stream.transform(uid, lambda rows: rows), chain.columns)


def drops(chain: Declared, uid: str, column: str) -> Declared:
    def without(rows: Rows) -> Rows:
        return Rows([table.drop_columns([column]) for table in rows.partitions], rows.around)

    return Declared(chain.stream.transform(uid, without), chain.others(column))  # type: ignore[arg-type]


def filters(chain: Declared, uid: str, column: str) -> Declared:
    passed = passes(chain, uid, column)
    return Declared(passed.stream.where("price % 3 <> 0"), passed.columns)


def projects(chain: Declared, uid: str, column: str) -> Declared:
    passed = passes(chain, uid, column)
    kept = (*chain.others(column, "price"), "price % 5 AS price")
    return Declared(passed.stream.select(*kept), (*chain.others(column, "price"), "price"))


def sums(chain: Declared, uid: str, column: str) -> Declared:
    summed = chain.stream.key_by(column).aggregate(uid, price=agg.sum("price"), n=agg.count())
    return Declared(summed.select(column, "price"), (column, "price"))


def counts(chain: Declared, uid: str, column: str) -> Declared:
    counted = chain.stream.key_by(column).aggregate(uid, price=agg.count())
    return Declared(counted, (column, "price"))


def ranks(chain: Declared, uid: str, column: str) -> Declared:
    ranked = chain.stream.key_by(column).top_n(uid, 2, by="price", unique=chain.others(column))
    return Declared(ranked.select(*chain.columns), chain.columns)


def chooses(chain: Declared, uid: str, column: str) -> Declared:
    return Declared(chain.stream.key_by(column).latest(uid, by="price"), chain.columns)


def unites(chain: Declared, uid: str, column: str) -> Declared:
    other = passes(chain, f"{uid}_other", column)
    return Declared(chain.stream.union(uid, other.stream), chain.columns)


STEPS: tuple[Step, ...] = (
    passes, drops, filters, projects, sums, counts, ranks, chooses, unites
)  # fmt: skip
steps = st.tuples(st.sampled_from(STEPS), st.integers(0, 2))


def applied(step: tuple[Step, int], chain: Declared, uid: str) -> Declared:
    declare, number = step
    columns = chain.others("price") or ("price",)
    column = columns[number % len(columns)]
    if column == "price" and declare is not passes:  # There is nothing else to key by, or to drop.
        declare = filters
    return declare(chain, uid, column)


def a_pipeline(
    chain: list[tuple[Step, int]], sibling: tuple[int, tuple[Step, int]] | None
) -> Pipeline:
    checkpointing = Checkpointing(max_records_per_epoch=EPOCH, data_inline_threshold=0)
    pipeline = Pipeline("chain", checkpointing, parallelism=2)
    source = pipeline.source("events", Nexmark(EVENTS, columns=COLUMNS))
    counted = source.key_by("bid_auction", "bidder").aggregate("first", price=agg.sum("price"))
    declared = [Declared(counted, COLUMNS)]
    for number, step in enumerate(chain):
        declared.append(applied(step, declared[-1], f"step_{number}"))
    if sibling is not None:
        place, step = sibling
        beside = applied(step, declared[place % len(declared)], "sibling")
        beside.stream.sink("sibling_changes", FilesTable(changelog=True))
    for number, one in enumerate(declared):
        one.stream.transform(f"reader_{number}", lambda rows: rows)
        one.stream.sink(f"changes_{number}", FilesTable(changelog=True))
    return pipeline


def written(pipeline: Pipeline) -> dict[str, list[Any]]:
    """Per stage what each of its subtasks wrote in each epoch: state, stream and staged rows."""
    job = a_running_job(pipeline)
    found: dict[str, list[Any]] = {uid: [] for uid in pipeline.stages}
    while job.state().status is JobStatus.RUNNING:
        plan = trigger_one(job)
        for task in plan.tasks:
            done = run_stage(job, None, plan.checkpoint_id, task.uid, attempt=1)  # type: ignore[arg-type]
            found[task.uid] += [files_of(job, ack) for ack in done.acks]
        finalize(job, plan.checkpoint_id)
        commit(job, plan.checkpoint_id)
    return found


def files_of(job: Job, ack: Ack) -> tuple[object, ...]:
    """Names are of the content, but those of staged files, which are of the attempt."""
    staged = [
        (one.sink, job.store.get(f"{job.paths.table(one.sink)}/{one.file}"))
        for one in ack.committables
    ]
    state = [(handle.table, handle.segment.checksum) for handle in ack.state]
    sent = [(one.key.replace(job.paths.token, "j"), one.checksum) for one in ack.output]
    return state, sent, ack.schema, staged


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@examples(8)  # Two whole jobs each.
@given(st.lists(steps, min_size=1, max_size=3), st.integers(0, 3), steps)
def test_no_byte_of_a_stage_changes_because_a_sibling_was_added(
    chain: list[tuple[Step, int]], place: int, sibling: tuple[Step, int]
) -> None:
    with stages_without_spark():
        alone = written(a_pipeline(chain, None))
        beside = written(a_pipeline(chain, (place, sibling)))

    assert {uid: beside[uid] for uid in alone} == alone
    assert alone["first"][0][1], "the first stage sends its stream"
