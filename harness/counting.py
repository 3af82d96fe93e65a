"""The number of requests of a checkpoint: ``measure``, and a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from harness.counting_store import CountingStore
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.spark.stage import run_stage
from sluice.store.memory import InMemoryStore
from sluice.store.open import StoreLocation, open_store

KINDS = ("get", "put", "create", "list", "delete")


OPENERS = (  # Who opens stores: a name that was imported at the top is its module's own.
    "sluice.store.open",
    "sluice.job.job",
    "sluice.exchange.subtask",
    "sluice.state.cache",
)


@contextmanager
def counting_every_store() -> Iterator[CountingStore]:
    """Within the block every store that is opened counts together with the one that is given."""
    requests = Counter[str]()

    def open_counting(location: StoreLocation) -> CountingStore:
        return CountingStore(open_store(location), requests)

    with pytest.MonkeyPatch.context() as patch:
        for module in OPENERS:
            patch.setattr(f"{module}.open_store", open_counting)
        yield CountingStore(InMemoryStore(), requests)


def request_table(costs: Mapping[str, Mapping[str, int]]) -> str:
    """One line for each act, one column for each kind of request."""
    width = max(map(len, costs), default=0)
    head = " ".join(f"{kind:>7}" for kind in (*KINDS, "total"))
    lines = [f"{'':{width}} {head}"]
    for act, asked in costs.items():
        counts = [asked.get(kind, 0) for kind in KINDS]
        numbers = " ".join(f"{count:>7}" for count in (*counts, sum(counts)))
        lines.append(f"{act:{width}} {numbers}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one checkpoint: by act, and of each subtask.  A stage's is that of its driver alone."""

    acts: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    subtasks: list[Counter[str]] = field(default_factory=list["Counter[str]"])

    def total(self, act: str) -> int:
        return self.acts[act].total()


def measure(pipeline: Pipeline, location: StoreLocation, *, checkpoints: int = 2) -> list[Costs]:
    """Take checkpoints with the real stages, but without Spark; tell what each of them costs."""
    with counting_every_store() as store:
        job = open_job(pipeline, location)
        submit(job, configure(pipeline, {}))
        return [_take(job, store) for _ in range(checkpoints)]


def _take(job: Job, store: CountingStore) -> Costs:
    costs, of_tasks = Costs(), Counter[str]()

    @contextmanager
    def act(name: str) -> Iterator[None]:
        with store.counted() as asked:
            yield
        costs.acts[name] = asked

    @contextmanager
    def around(kind: str) -> Iterator[None]:
        with store.counted() as asked:
            yield
        of_tasks.update(asked)
        if kind == "subtask":
            costs.subtasks.append(asked)

    with act("trigger"):
        outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    checkpoint_id = outcome.plan.checkpoint_id
    with stages_without_spark(around):
        for stage in job.pipeline.stages:
            of_tasks.clear()
            with act(f"stage {stage}"):
                run_stage(job, None, checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
            costs.acts[f"stage {stage}"].subtract(of_tasks)
    with act("finalize"):
        finalize(job, checkpoint_id)
    with act("commit"):
        commit(job, checkpoint_id)
    return costs
