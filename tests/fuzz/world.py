"""A play of a plan: the real coordinator, real stages and subtasks, and an oracle that looks on.

Files are added, checkpoints are taken; a subtask, a stage or the coordinator dies where the plan
says so; the job is restored, from the latest checkpoint or from an older one, with another
parallelism.  Behind every commit each sink is compared with what batch SQL says.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from sluice.cli.maintenance import vacuum
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake, start_attempt
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.restoring import Choice, Latest
from sluice.core.transitions import Consent
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import Sink
from sluice.errors import StageFailed
from sluice.job.job import Job, open_job
from sluice.job.places import open_side_table, open_sinks
from sluice.sources import Files
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation
from tests.fuzz.changing import DRAWS, STATELESS
from tests.fuzz.compare import added_up, difference, left_out_difference
from tests.fuzz.consents import DifferenceError, consented
from tests.fuzz.data import batch_of, schema_of, write_avro
from tests.fuzz.declaring import declare
from tests.fuzz.growing import Growing
from tests.fuzz.lines import PACKED, as_read, ddl_of, encoded, with_malformed
from tests.fuzz.oracle import Oracle
from tests.fuzz.past import Epoch, Past, Position
from tests.fuzz.plans import Change, Checkpoint, Feed, Plan, Restore, SourcePlan, Vacuum, changed
from tests.fuzz.session import Session

# Where a checkpoint may die: before and behind a subtask's ack, which is run again or fails the
# job over, with its coordinator, or between two acts of it.
POINTS = (
    "dies_retried", "acked_retried", "dies_fails", "acked_fails", "dies_vanishes",
    "before_finalize", "before_commit",
)  # fmt: skip
TINY_BYTES = 2_048


class KilledError(Exception):
    """A subtask's process is gone."""


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1_000
        return self.now_ms


@dataclass(frozen=True, slots=True)
class Before:
    """A play as it was at its newest checkpoint before the declaration changed."""

    plan: Plan
    checkpoint_id: int
    oracle: Oracle
    ttls: dict[str, int | None]


@dataclass
class World:
    """``spark``: a real session in the place of one in this process."""

    plan: Plan
    folder: Path
    root: str = "memory://fuzz"
    spark: Any = None
    strikes: Checkpoint | None = field(default=None, init=False)
    subtasks: int = field(default=0, init=False)
    is_behind: bool = field(default=False, init=False)
    has_changed: bool = field(default=False, init=False)
    is_as_it_was: bool = field(default=False, init=False)  # As a change was refused.
    before: Before | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.past = Past(self.plan)
        self.tables: dict[str, list[pa.Table]] = {}
        self.growing: dict[str, Growing] = {}
        self.specs = {source.uid: self._spec(source) for source in self.plan.sources}
        pipeline = self._declared(self.plan)
        if self.spark is None:
            self.spark = Session(Random(self.plan.seed), self._around, self.plan.way)
        self.job: Job = open_job(pipeline, StoreLocation(self.root), clock=ManualClock())
        submit(self.job, configure(pipeline, {}))
        self.oracle = Oracle(self.past)

    def play(self) -> None:
        """Raises DifferenceError, or whatever the product raises."""
        for act in self.plan.acts:
            match act:
                case Feed():
                    self._feed(act)
                case Checkpoint():
                    self._checkpoint(act)
                case Restore():
                    self._restore(act)
                case Change():
                    self._change(act)
                case Vacuum():
                    self._vacuum()
            if self.job.state().status is not JobStatus.RUNNING:
                return

    def _declared(self, plan: Plan) -> Pipeline:
        moved = {source.uid: self._moved(source.uid) for source in plan.sources if source.moved}
        pipeline = declare(plan, self.specs | moved, self.folder.parent / "tables")
        if plan.spills:
            # Below what a person may set: rows here are few, and are to be spilled all the same.
            object.__setattr__(pipeline.state_backend, "memory_per_subtask", TINY_BYTES)
        return pipeline

    def _spec(self, source: SourcePlan) -> Any:
        self.past.rows[source.uid] = {}
        self.tables[source.uid] = []
        if source.grows:
            self.growing[source.uid] = Growing(schema_of(source), self.past.rows[source.uid])
            return self.growing[source.uid]
        (self.folder / source.uid).mkdir(parents=True)
        if source.is_table:
            (self.folder / source.uid / "empty.txt").touch()
            return Files(str(self.folder / source.uid), format="text")
        if source.has_lines:
            place = str(self.folder / source.uid)
            return Files(
                place,
                format=source.format,
                schema=ddl_of(source),
                header=source.has_header,
                bounded=False,
            )
        empty = batch_of(self.plan, source, 0, ())  # It says what the columns are.
        self._write(source, "empty", empty)
        return Files(str(self.folder / source.uid), format=source.format, bounded=False)

    def _moved(self, uid: str) -> Files:
        """The same folder by another name."""
        spec: Files = self.specs[uid]
        return replace(spec, location=str(self.folder / uid / ".." / uid))

    def _write(self, source: SourcePlan, name: str, rows: pa.Table) -> None:
        path = self.folder / source.uid / f"{name}.{source.format}{source.packed}"
        known = self.past.rows[source.uid]
        if source.format == "avro":
            write_avro(rows, path)
        elif source.has_lines:
            with path.open("ab") as file:
                file.write(PACKED[source.packed](encoded(source, rows, begins=file.tell() == 0)))
            rows, texts = with_malformed(source, as_read(source, rows))
            if source.malformed:
                of_file = self.past.malformed.setdefault(source.uid, {}).setdefault(path.name, [])
                is_headed = source.has_header and not of_file
                of_file += [None, *texts] if is_headed else texts
            if source.has_header and path.name not in known:
                header = pa.table([pa.nulls(1, one.type) for one in rows.schema], rows.schema)
                rows = pa.concat_tables([header, rows])
        else:
            pq.write_table(rows, path, row_group_size=16)
        known[path.name] = pa.concat_tables([known.get(path.name, rows.slice(0, 0)), rows])

    def _feed(self, act: Feed) -> None:
        source = self.plan.source(act.source)
        assert source is not None
        rows = batch_of(self.plan, source, act.batch, act.rows)
        if source.grows:
            partition = f"p{act.partition}"
            before = self.past.rows[source.uid].get(partition, rows.slice(0, 0))
            self.past.rows[source.uid][partition] = pa.concat_tables([before, rows])
            return
        if source.is_table:
            lines = "".join(f"{line}\n" for line in rows.column("line").to_pylist())
            file = self.folder / source.uid / f"{act.batch:05d}.txt"
            if act.batch % 3:
                file.write_text(lines)
            else:
                file.with_suffix(".txt.gz").write_bytes(gzip.compress(lines.encode()))
            self.tables[source.uid].append(rows)
            return
        number = act.batch // 3 if source.has_files_that_grow else act.batch
        self._write(source, f"{number:05d}", rows)

    def _checkpoint(self, act: Checkpoint) -> None:
        kind = CheckpointType.SAVEPOINT_TERMINATE if act.drains else CheckpointType.CHECKPOINT
        outcome = trigger(self.job, type=kind, is_periodic=False, cause="fuzz")
        if not isinstance(outcome, Triggered):
            return
        plan = outcome.plan
        epoch = self._epoch(plan, drains=act.drains)
        self.strikes, self.subtasks = act, 0
        for task in self._in_turn(plan):
            if self._is_overtaken(plan, task, act):
                continue
            if not self._stage(plan, task.uid, act):
                self._fail_over()
                return
        if act.fate == "before_finalize":
            self._fail_over()
            return
        overtaken = frozenset(self._pending(plan).overtaken)
        finalize(self.job, plan.checkpoint_id)
        self.past.epochs.append(replace(epoch, overtaken=overtaken))
        self.past.ttls = {stage.uid: stage.args.get("ttl") for stage in self.plan.stages}
        self.is_behind = False
        if act.fate == "before_commit":
            self._fail_over()
            return
        commit(self.job, plan.checkpoint_id)
        self._compare()

    def _in_turn(self, plan: CheckpointPlan) -> list[TaskPlan]:
        """Those that wait for none come first, the last of the chain before the others."""
        unaligned = [task for task in plan.tasks if task.is_unaligned]
        return [*reversed(unaligned), *(task for task in plan.tasks if not task.is_unaligned)]

    def _is_overtaken(self, plan: CheckpointPlan, task: TaskPlan, act: Checkpoint) -> bool:
        """Whether the aligned checkpoint timeout has passed before the stage ran."""
        place = next(n for n, one in enumerate(self.plan.stages, start=1) if one.uid == task.uid)
        if task.may_be_overtaken and place == act.overtakes:
            overtake(self.job, plan.checkpoint_id, [task.uid])
        return task.uid in self._pending(plan).overtaken

    def _pending(self, plan: CheckpointPlan) -> PendingCheckpoint:
        pending = self.job.state().pending_checkpoint(plan.checkpoint_id)
        assert pending is not None, "a checkpoint is pending until it is finalized"
        return pending

    def _stage(self, plan: CheckpointPlan, stage: str, act: Checkpoint) -> bool:
        """Whether it came to its end, perhaps in another attempt."""
        try:
            self._run(plan, stage, self._pending(plan).attempt_of(stage))
        except StageFailed as error:
            if not isinstance(error.__cause__, KilledError):
                raise
            if act.fate.endswith("retried"):
                self._run(plan, stage, start_attempt(self.job, plan.checkpoint_id, stage))
                return True
            if act.fate.endswith("fails"):
                reason = CheckpointFailureReason.TASK_FAILURE
                fail_checkpoint(
                    self.job, plan.checkpoint_id, reason, "killed", is_task_failure=True
                )
            return False
        return True

    def _run(self, plan: CheckpointPlan, stage: str, attempt: int) -> None:
        done = run_stage(self.job, self.spark, plan.checkpoint_id, stage, attempt=attempt)
        done.compact()

    @contextmanager
    def _around(self, index: int, count: int) -> Iterator[None]:
        """Of one subtask: where the plan says so it dies before its ack, or behind it."""
        act = self.strikes
        self.subtasks += 1
        is_now = act is not None and self.subtasks - 1 == act.at
        if is_now and act is not None and act.fate.startswith("dies"):
            raise KilledError
        yield
        if is_now and act is not None and act.fate.startswith("acked"):
            raise KilledError

    def _fail_over(self) -> None:
        restore(self.job, Latest())
        if self.past.epochs and not self.is_behind:
            self._compare()

    def _restore(self, act: Restore) -> None:
        """Of the retained ones; the files tables show what they showed until the next commit."""
        state = self.job.state()
        retained = {one.checkpoint_id for one in state.completed}
        known = [one.checkpoint_id for one in self.past.epochs if one.checkpoint_id in retained]
        if not known:
            return
        chosen = known[max(0, len(known) - 1 - act.back)]
        changed = reconfigure(
            self.job.pipeline, state.configuration, {}, parallelism=act.parallelism
        )
        restore(self.job, Choice(CheckpointId(chosen)), configuration=changed)
        while self.past.epochs[-1].checkpoint_id != chosen:
            self.past.epochs.pop()
            self.is_behind = True  # The tables show more, until the next commit.

        self._check_delta_logs(open_sinks(self.job, {}))

    def _vacuum(self) -> None:
        """By turns a person vacuums each table, or they are vacuumed with the garbage."""
        tables = open_sinks(self.job, {})
        is_with_garbage = self.job.state().next_checkpoint_id % 2 == 0
        if is_with_garbage:
            collect_garbage(self.job, grace_ms=0)
        for uid, table in tables.items():
            assert isinstance(table, ManifestTable)
            if table.lineage() and not is_with_garbage:
                with redirect_stdout(StringIO()):
                    vacuum(self.job, uid, keep_versions=1, grace="0s")
        self._check_delta_logs(tables)
        if self.past.epochs and not self.is_behind:
            self._compare()

    def _change(self, act: Change) -> None:
        """The job goes on as it is declared then, perhaps with consent; or as it was, if none
        helps, or nobody consents.
        """
        before = self._now() if not act.from_before else self.before
        if before is None or self.is_as_it_was:
            return
        after = changed(before.plan, act.edits)
        state = self.job.state()
        is_retained = any(one.checkpoint_id == before.checkpoint_id for one in state.completed)
        if (after == self.plan and not act.from_before) or not is_retained:
            return
        if act.from_before and act.part and self._newest == before.checkpoint_id:
            return  # The consent to the change of before holds still.
        if act.difference == "absent" and self.oracle.has_completed_none():
            act = replace(act, part="")  # Nothing was sent while the sink was not declared.
        job = replace(self.job, pipeline=self._declared(after))
        object.__setattr__(job, "time", self.job.time)  # TTLs would wait for one that begins anew.
        target = CheckpointId(before.checkpoint_id)
        metadata = (
            job.snapshot_metadata(target, None) if act.from_before else job.base_metadata(state)
        )
        assert metadata is not None
        # Where nothing is kept, as all windows have ended, a stage begins anew whatever changes.
        stateful = (one for one in before.plan.stages if one.op not in STATELESS)
        empty = [stage for stage in stateful if stage.uid not in metadata.held]
        if any(stage.args.get("lateness") for stage in empty):
            return  # What it sent, to be replaced, may be in the state of others.
        consent = consented(job, act, Choice(target))
        if consent is None:
            self.is_as_it_was = True
            return
        self._go_back_to(before)
        names = {uid: new for uid, path, new in act.edits if path == "uid"}
        begun = Consent(begun=(*(stage.uid for stage in empty), *names.values()))
        self.oracle.changes(consent.beside(begun), names)
        self.job, self.plan, self.past.plan = job, after, after
        self.has_changed = self.is_behind = True  # The tables follow with the next commit.

    def _now(self) -> Before | None:
        """None before the first checkpoint."""
        if not self.past.epochs:
            return None
        # Later checkpoints may be there, from before a restore.
        return Before(self.plan, self._newest, self.oracle.as_it_is(), self.past.ttls)

    def _go_back_to(self, before: Before) -> None:
        while self.past.epochs[-1].checkpoint_id != before.checkpoint_id:
            self.past.epochs.pop()
        self.plan, self.past.plan, self.past.ttls = before.plan, before.plan, before.ttls
        self.before, self.oracle = before, before.oracle.as_it_is()

    def _epoch(self, plan: CheckpointPlan, *, drains: bool) -> Epoch:
        read: dict[str, dict[str, Position]] = {}
        tables = {}
        for source in self.plan.sources:
            if source.is_table:
                empty = schema_of(source).empty_table()
                tables[source.uid] = pa.concat_tables([empty, *self.tables[source.uid]])
                continue
            read[source.uid] = {
                (name := one.partition.rsplit("/", 1)[-1]): Position(
                    records=one.records,
                    available=self.past.rows[source.uid][name].num_rows,
                    is_sealed=one.sealed,
                    is_file=not (source.grows or source.has_files_that_grow),
                )
                for one in plan.source(source.uid).position
            }
        planned_ms = {uid: plan.source(uid).at_ms for uid in read}
        return Epoch(
            checkpoint_id=plan.checkpoint_id,
            planned_ms={uid: at_ms for uid, at_ms in planned_ms.items() if at_ms is not None},
            processing_time_ms=plan.processing_time_ms,
            read=read,
            tables=tables,
            drains=drains,
            unaligned=frozenset(task.uid for task in plan.tasks if task.is_unaligned),
            out_of_orderness_ms={one.uid: one.out_of_orderness_ms for one in self.plan.sources},
            ttl_ms=self._ttls(),
        )

    def _ttls(self) -> dict[str, int]:
        """Of stages; one that became longer, or was removed, holds from the next epoch on."""
        now = {stage.uid: stage.args.get("ttl") for stage in self.plan.stages}
        both = {uid: (ttl, self.past.ttls.get(uid)) for uid, ttl in now.items()}
        known = {uid: [ttl for ttl in ttls if ttl is not None] for uid, ttls in both.items()}
        return {uid: min(ttls) for uid, ttls in known.items() if ttls}

    def _compare(self) -> None:
        sinks = open_sinks(self.job, {})
        drawn = next((sink for sink in self.plan.sinks if sink.producer == DRAWS), None)
        if drawn is not None:
            published = sinks[drawn.uid]
            assert isinstance(published, ManifestTable)
            self.oracle.knows_drawn(published.read())
        expected = self.oracle.sinks()
        changelogs = {sink.uid for sink in self.plan.sinks if sink.changelog}
        for uid, rows in expected.items():
            table = sinks[uid]
            assert isinstance(table, ManifestTable)
            got = table.read()
            if self.has_changed:
                got = _as_declared(got, rows.schema)
            wrong = difference(rows, added_up(got) if uid in changelogs else got)
            if wrong is not None:
                raise DifferenceError(f"sink {uid} at checkpoint {self._newest}: {wrong}")
        self._check_delta_logs(sinks)
        for uid, rows in self.oracle.sides().items():
            wrong = left_out_difference(rows, open_side_table(self.job, uid).read())
            if wrong is not None:
                raise DifferenceError(f"side output {uid} at checkpoint {self._newest}: {wrong}")

    def _check_delta_logs(self, tables: Mapping[str, Sink]) -> None:
        """Others read by a table's Delta log what its manifests say, also where it is behind."""
        for sink in self.plan.sinks:
            table = tables.get(sink.uid)
            if not sink.delta_log or not isinstance(table, ManifestTable):
                continue
            uri, rows = table.store.root.removeprefix("file://"), table.read()
            got = pa.table({})
            if DeltaTable.is_deltatable(uri):
                got = DeltaTable(uri).to_pyarrow_table()
            if not rows.column_names:  # Of a table that is empty the log has the columns still.
                rows = got.slice(0, 0)
            wrong = difference(rows, got)
            if wrong is not None:
                raise DifferenceError(f"the Delta log of sink {sink.uid} as it shows it: {wrong}")

    @property
    def _newest(self) -> int:
        return self.past.epochs[-1].checkpoint_id


def _as_declared(table: pa.Table, declared: pa.Schema) -> pa.Table:
    """*table* without columns that are not declared any more, and with those that no file has; a
    column that is called so in another case is the one that it was.
    """
    names = {name.lower(): name for name in declared.names}
    table = table.rename_columns([names.get(n.lower(), n) for n in table.column_names])
    kept = [n for n in table.column_names if n in (*declared.names, "kind")]
    for field_ in declared if kept else ():
        if field_.name not in kept:
            table = table.append_column(field_, pa.nulls(table.num_rows, field_.type))
            kept.append(field_.name)
    return table.select(kept)
