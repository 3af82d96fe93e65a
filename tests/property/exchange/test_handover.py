"""Tasks that all run at once exchange their rows: each comes once, wherever a task fails and is
tried again, as if one task had done it all.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import StoreUnavailable
from sluice.exchange.blocks import LOCAL_FOLDERS, BlockFolder, Handover, Handovers
from sluice.spark.tasks import (
    MappedPartitions,
    Move,
    Partition,
    PartitionFunction,
    PipelinedJob,
    Placed,
    run_task,
)
from tests.examples import examples

SCHEMA = pa.schema([("to", pa.int32()), ("path", pa.string())])
Row = tuple[int, str]


@dataclass(frozen=True)
class Job:
    """Steps of so many partitions each, which ``tasks`` run; partition *n* fails as often in step
    *s* as ``failures[n, s]`` says, before its first row or behind its last.
    """

    tasks: int
    parallelisms: tuple[int, ...]
    failures: dict[tuple[int, int], int]
    is_late: bool

    def behind(self, step: int, rows: Iterable[Row]) -> Iterator[Row]:
        """What *step* makes of *rows*: two of each, some for the same task and some for none."""
        parallelism = [*self.parallelisms[1:], 1][step]
        for _, path in rows:
            for piece in range(2):
                yield (len(path) * 7 + piece * step) % parallelism, f"{path}.{piece}"


@dataclass
class Played:
    job: Job
    failed: Counter[tuple[int, int]] = field(default_factory=Counter)
    calls: Counter[tuple[int, int]] = field(default_factory=Counter)

    def results(self) -> list[Row]:
        first, *behind = self.job.parallelisms
        moves: list[Move] = [MappedPartitions(self.step(0), SCHEMA)]
        for number, parallelism in enumerate(behind, 1):
            moves += [Placed(parallelism, "to"), MappedPartitions(self.step(number), SCHEMA)]
        job = PipelinedJob(
            tasks=self.job.tasks,
            count=first,
            moves=moves,
            folder=BlockFolder(stage="a-stage", attempt="1"),
            name="a-job",
        )
        with (
            ThreadPoolExecutor(8) as pool,
            tempfile.TemporaryDirectory() as folder,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv(LOCAL_FOLDERS, folder)

            def ran(task: int) -> list[Row] | None:
                """Its rows; None if it has failed."""
                try:
                    found = [*run_task(job, task)]
                except ZeroDivisionError:
                    return None
                rows = (row for batch in found for row in batch.to_pylist())
                return [(row["to"], row["path"]) for row in rows]

            while None in (tasks := [*pool.map(ran, range(job.tasks))]):
                job = replace(job, number=job.number + 1)
            results = [row for rows in tasks for row in rows or ()]
            left = [path for path in Path(folder).rglob("*") if path.is_file()]
        assert not left
        return results

    def step(self, number: int) -> PartitionFunction:
        def run(part: Partition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            at = (part.number, number)
            self.calls[at] += 1
            fails = self.failed[at] < self.job.failures.get(at, 0)
            self.failed[at] += fails
            if fails and not self.job.is_late:
                raise ZeroDivisionError
            for batch in batches:
                paths = batch.column(batch.num_columns - 1).to_pylist()
                for to, path in self.job.behind(number, [(0, str(path)) for path in paths]):
                    yield pa.RecordBatch.from_pylist([{"to": to, "path": path}], SCHEMA)
            if fails:
                raise ZeroDivisionError

        return run


def expected(job: Job) -> list[Row]:
    rows: list[Row] = [(task, str(task)) for task in range(job.parallelisms[0])]
    for step in range(len(job.parallelisms)):
        rows = list(job.behind(step, rows))
    return rows


jobs = st.builds(
    Job,
    tasks=st.integers(1, 4),
    parallelisms=st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple),
    failures=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(1, 2), max_size=4
    ),
    is_late=st.booleans(),
)


@given(job=jobs)
@examples(60)
def test_each_row_comes_once_wherever_a_task_fails(job: Job) -> None:
    played = Played(job)

    assert sorted(played.results()) == sorted(expected(job))
    sending = range(len(job.parallelisms) - 1)
    for (part, step), calls in played.calls.items():
        if step in sending and job.tasks >= max(job.parallelisms):
            # A step is done once, and once for each of its failures: not for those behind it.
            assert calls == 1 + played.failed[part, step] <= 3
        else:  # What it yields is the result, or a task has several parts.
            assert calls >= 1 + played.failed[part, step]


def test_who_waits_goes_on_when_all_have_sent_and_not_before(tmp_path: Path) -> None:
    handover = Handover(tmp_path / "0", 2)
    handover.folder.mkdir()
    batch = pa.RecordBatch.from_pylist([{"to": 1, "path": "a"}, {"to": 0, "path": "b"}], SCHEMA)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handover.wait)
        handover.send(1, [batch], SCHEMA)
        time.sleep(0.1)
        assert not waiting.done()
        handover.send(0, [], SCHEMA)
        waiting.result(timeout=60)

    assert [handover.has_sent(sender) for sender in range(2)] == [True, True]
    (received,) = handover.received([0], "to").values()
    assert [part.to_pylist() for part in received] == [[{"to": 0, "path": "b"}]]


def test_what_is_being_sent_is_not_there_yet(tmp_path: Path) -> None:
    handover = Handover(tmp_path / "0", 1)
    handover.folder.mkdir()

    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"to": 0, "path": "a"}], SCHEMA)
        assert not handover.has_sent(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handover.send(0, breaks_off(), SCHEMA)
    assert not handover.has_sent(0)
    assert not list(handover.folder.iterdir())


def test_who_waits_ends_at_once_when_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCAL_FOLDERS, str(tmp_path))
    folder = BlockFolder(stage="a-stage", attempt="1")

    def task(number: int, attempt: int = 0) -> Handovers:
        return Handovers(folder, "a-job", number=attempt, tasks=2, task=number)

    def waits() -> str:
        with task(0) as handovers:
            handovers.next(senders=2).wait()
        return "ended"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits)
        time.sleep(0.05)
        assert not waiting.done()
        with pytest.raises(ZeroDivisionError), task(1):
            raise ZeroDivisionError
        assert waiting.result(timeout=60) == "ended"
    with task(0, attempt=1) as again, task(1, attempt=1) as other:
        again.next(senders=2).send(0, [], SCHEMA)
        other.next(senders=2).send(1, [], SCHEMA)
        again.next(senders=0).wait()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_who_waits_is_told_that_the_job_has_ended(tmp_path: Path) -> None:
    exchange = tmp_path / "0"
    exchange.mkdir()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Handover(exchange, 1).wait)
        time.sleep(0.05)
        exchange.rmdir()
        with pytest.raises(StoreUnavailable, match="ended"):
            waiting.result(timeout=60)
