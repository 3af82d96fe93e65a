"""How many requests a checkpoint costs: a store that counts, ``measure``, and a table for people.

Tests and the benchmark share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pytest

from sluice.pipeline import Pipeline
from sluice.runner.completion import commit, finalize
from sluice.runner.job import Job, open_job
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import Triggered, trigger
from sluice.spark.stage import run_stage
from sluice.storage.memory import InMemoryStore
from sluice.storage.object_store import CreateResult, Listed, ObjectStore
from sluice.storage.open import StoreLocation, open_store
from tests.no_spark import stages_without_spark

KINDS = ("get", "put", "create", "list", "delete")
PAGE = 1_000  # What S3 lists, or deletes, in one request.


class CountingStore:
    """Counts requests as S3 charges them: a listing by its pages, a deletion by its batches."""

    def __init__(self, store: ObjectStore, requests: Counter[str] | None = None) -> None:
        self._store = store
        self._lock = Lock()
        self.requests: Counter[str] = Counter() if requests is None else requests

    @property
    def root(self) -> str:
        return self._store.root

    def get(self, key: str) -> bytes | None:
        self._count("get")
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self._count("get")
        return self._store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        self._count("put")
        self._store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._count("create")
        return self._store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        listed = [*self._store.list(prefix, start_after=start_after)]
        self._count("list", 1 + len(listed) // PAGE)
        return iter(listed)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = [*keys]
        self._count("delete", -(-len(doomed) // PAGE))
        self._store.delete(doomed)

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """What is asked of the store in the block; the counter is complete behind it."""
        before, asked = Counter(self.requests), Counter[str]()
        yield asked
        asked.update(self.requests - before)

    def _count(self, kind: str, requests: int = 1) -> None:
        with self._lock:
            self.requests[kind] += requests


OPENERS = (  # Who opens stores: a name that was imported at the top is its module's own.
    "sluice.storage.open",
    "sluice.runner.job",
    "sluice.runtime.subtask",
    "sluice.runtime.state.cache",
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
