"""Statistics are best effort: whatever request of theirs fails, the job goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.errors import StoreUnavailable
from sluice.store.checkpoints import StatisticsStore
from sluice.store.object_store import CreateResult, Listed, ObjectStore
from sluice.surface.checkpoints import overview
from tests.subtasks import acknowledge, finish, take_checkpoint, take_checkpoints

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


@dataclass
class WithoutStatistics:
    """A store that is gone for requests of one *kind* to the statistics, and there for the rest."""

    store: ObjectStore
    kind: str
    failed: int = 0

    @property
    def root(self) -> str:
        return self.store.root

    def get(self, key: str) -> bytes | None:
        self._strike("get", key)
        return self.store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self.store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        self.store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._strike("create", key)
        return self.store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._strike("list", prefix)
        return self.store.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        self.store.delete(keys)

    def _strike(self, kind: str, key: str) -> None:
        if kind == self.kind and "/statistics/" in key:
            self.failed += 1
            raise StoreUnavailable("no answer")


@pytest.mark.parametrize("kind", ["get", "create", "list"])
def test_a_request_for_statistics_that_fails_changes_nothing_else(kind: str) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9, num_retained=1))
    take_checkpoint(job)
    job.store.delete([job.paths.statistics(1)])  # So that the next one has to LIST.
    broken = WithoutStatistics(job.store, kind)
    without = replace(job, store=broken)

    acknowledge(job, trigger_one(job))
    finish(without, CheckpointId(2))
    fail_checkpoint(without, trigger_one(job).checkpoint_id, EXPIRED, "too slow")

    assert broken.failed == 2 if kind != "list" else broken.failed
    assert job.store.get(job.paths.plan(3)) is None
    assert published_records(job) == [*range(20)]
    take_checkpoint(job)
    assert [(one.id, one.status.value) for one in overview(job).history][:2] == [
        (4, "COMPLETED"),
        (3, "FAILED"),
    ]
    assert overview(job).counts.failed == 1


def test_a_coordinator_that_dies_before_it_writes_is_made_up_for_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    acknowledge(job, trigger_one(job))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StatisticsStore, "write", die)
        with pytest.raises(KeyboardInterrupt):
            finalize(job, CheckpointId(2))
    commit(job, CheckpointId(2))
    take_checkpoints(job, 2)

    shown = overview(job)

    assert [(one.id, one.status.value, one.records) for one in shown.history] == [
        (number, "COMPLETED", 10) for number in (4, 3, 2, 1)
    ]
    assert (shown.counts.completed, shown.counts.total) == (4, 4)
    assert [one.committed for one in shown.history] == [True, True, True, None]


def test_a_job_that_ended_and_kept_no_checkpoint_still_tells_of_them() -> None:
    finished = a_running_job(a_pipeline(events=10))
    take_checkpoint(finished)
    while finished.state().is_alive:
        take_checkpoint(finished)

    shown = overview(finished)

    assert finished.state().completed == ()
    assert shown.counts.completed == len(shown.history) > 0
