"""One stage of one pending checkpoint, and what is chained to it, as one Spark job: read,
transform, shuffle, snapshot.

Spark's JVM scans, joins and shuffles; the subtask merges and writes, and its ack is a row of the
Spark job.  Running a stage again is harmless at any moment: files are named by their content, and
the driver's answer, all acks of a stage in one object, is created once.

Stages that are chained run one behind the other in one Spark job (Flink's operator chaining).  The
driver of the first stage decides, for one attempt.  The stages keep their uids, state, acks and
metrics; only the stream between them is not in the bucket.  So a chained stage acknowledges when
those behind it have: there is nothing that they could read again.  The driver writes the acks once
it knows that every subtask has read the same executions of those before it.

A stage's failure is one sentence: the stage, what it was reading, and the cause last.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sluice.coordinator.failure import cause_of, stack_behind
from sluice.coordinator.publication import publish_early
from sluice.core.answers import (
    Ack,
    Decline,
    Execution,
    Mixture,
    StageAnswer,
    TaskFailure,
    mixture_in,
)
from sluice.core.completed import StageState
from sluice.core.configuration import CheckpointingMode
from sluice.core.event_time import MIN_WATERMARK
from sluice.core.failures import Cause, code_place, root_cause, stage_in
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.core.transitions import Adoption, adoption
from sluice.declaration.fingerprints import fingerprints, shorter_ttls_ms
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode, Transform
from sluice.declaration.places import ReadBySparkSpec
from sluice.errors import (
    ConfigurationError,
    FencedError,
    NotYetAcknowledged,
    SluiceError,
    StageFailed,
    StoreUnavailable,
)
from sluice.exchange.blocks import RESULT_SCHEMA, executions_in
from sluice.exchange.faults import Fault
from sluice.job.answers import acks_of, plan_of, still_pending
from sluice.job.job import Job, new_token
from sluice.job.lineage import Lineage, PendingParent, assigned_state, lineage_of
from sluice.job.stage_input import StageInput, StreamInput, chained_behind, stage_input
from sluice.protocol.keys import snapshot_task
from sluice.spark.deployment import Deployment, compact_state, deploy, deploy_behind, subtask_of
from sluice.spark.session import with_our_settings
from sluice.spark.spark_code import views_of_its_call, without_reading
from sluice.spark.tasks import StageRun
from sluice.state.segments import StateSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
RUNS_OF_A_CHAIN = 2  # One more when Spark has lost rows of it; then the attempt fails.
NAMED_PARTITIONS = 2  # In an error's sentence; of more partitions their number is named.
_SPARK = ("pyspark", "py4j")
_LOST = "indeterminate output was failed and retried"  # DAGScheduler, by checksums of shuffles.


@dataclass(frozen=True, slots=True)
class AcknowledgedStage:
    """A stage whose subtasks have all acknowledged, and those that were chained to it.

    A stage that ran chained to another has no snapshots of its own here.
    """

    snapshots: tuple[_Snapshot, ...]

    @property
    def acks(self) -> tuple[Ack, ...]:
        return tuple(ack for snapshot in self.snapshots for ack in snapshot.acks)

    def compact(self) -> None:
        """Merge runs of their state, if there are too many.  An error is only logged."""
        for snapshot in self.snapshots:
            try:
                compact_state(snapshot.run, snapshot.acks, snapshot.tables)
            except Exception:  # The checkpoint does not depend on it, whatever failed.
                log.warning("state not compacted %s", _of(snapshot.run), exc_info=True)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    run: StageRun
    acks: tuple[Ack, ...]
    tables: Mapping[str, StateSchema] = field(default_factory=dict[str, StateSchema])

    def answer(self) -> StageAnswer:
        run = self.run
        return StageAnswer(
            checkpoint_id=run.plan.checkpoint_id,
            stage=run.node.uid,
            attempt=run.attempt,
            plan=run.plan.token,
            driver=run.driver,
            acks=tuple(sorted(self.acks, key=lambda ack: ack.subtask)),
            read=run.given.drivers,
        )


def run_stage(
    job: Job,
    spark: SparkSession,
    checkpoint_id: CheckpointId,
    stage: str,
    *,
    attempt: int,
    fault: Fault | None = None,
) -> AcknowledgedStage:
    """Run the stage, and return when it has answered: every subtask has acknowledged.

    The subtasks of the stages that are chained to it have acknowledged then, too.  *fault* is
    injected into this attempt; by default the one that the environment names.  Why it failed is in
    the bucket before it is raised.

    Raises:
        StageFailed: the Spark job failed; the message ends with the root cause.
        NotYetAcknowledged: a stage that this one reads, or its parent, is not sealed yet.
        FencedError: the checkpoint is not pending any more, or another attempt took over.
        ConfigurationError: the stage takes no part in the checkpoint.
    """
    try:
        return _run_stage(job, spark, checkpoint_id, stage, attempt=attempt, fault=fault)
    except (FencedError, NotYetAcknowledged):
        raise
    except Exception as error:
        message = str(error) if isinstance(error, SluiceError) else str(failure_cause(error))
        task = snapshot_task(stage)
        job.answers.keep_failure(
            TaskFailure(
                checkpoint_id=checkpoint_id,
                task=task,
                attempt=attempt,
                message=message,
                stack=stack_behind(error),
            )
        )
        raise


def _run_stage(
    job: Job,
    spark: SparkSession,
    checkpoint_id: CheckpointId,
    stage: str,
    *,
    attempt: int,
    fault: Fault | None,
) -> AcknowledgedStage:
    plan = plan_of(job, checkpoint_id)
    state = job.journal.load(after=plan.journal_seq).state
    if state.pending_checkpoint(checkpoint_id) is None:
        state = job.state()  # It has ended, or the state is too old to know it.
    pending = still_pending(state, checkpoint_id)
    _require_current(pending, stage, attempt)
    _require_planned(plan, stage)
    _require_meant(job, plan, state)
    lineage = lineage_of(job, state, plan)
    given = stage_input(job, state, plan, stage, lineage)
    if given.is_chained:
        acks_of(job, state, checkpoint_id)(stage)
        return AcknowledgedStage(())
    run = StageRun(
        job=job,
        spark=with_our_settings(spark),
        plan=plan,
        node=_read_if_due(
            _forgetting_as_before(job.pipeline.stages[stage], plan, lineage), job, plan, lineage
        ),
        configuration=state.configuration,
        given=given,
        before=lineage.stage(stage),
        attempt=attempt,
        driver=new_token(),
        adopts=_adopted(stage, plan, lineage),
        republished=_republished(job, stage, plan, lineage),
        kept=_kept(
            job.pipeline.stages[stage], lineage, PendingParent(job, state, plan, pending, lineage)
        ),
        fault=fault,
    )
    if given.is_known:
        snapshots = _run(run, pending, lineage)
    else:
        snapshots = (_Snapshot(run, _acknowledge_nothing(run)),)
    return _acknowledged(snapshots)


def _forgetting_as_before(node: StageNode, plan: CheckpointPlan, lineage: Lineage) -> StageNode:
    """The stage as it runs in this epoch: a longer TTL holds from the next one on.  State that has
    expired by the shorter one may still be there, and is dropped first.
    """
    before = lineage.fingerprint(node.uid)
    shorter_ms = shorter_ttls_ms(node, before, plan.fingerprints.get(node.uid))
    ttl_ms = shorter_ms.pop("", node.ttl_ms)
    return replace(node, ttl_ms=ttl_ms, former_ttls_ms=shorter_ms)


def _read_if_due(node: StageNode, job: Job, plan: CheckpointPlan, lineage: Lineage) -> StageNode:
    """The stage as it runs in this epoch: a place that Spark reads stays as it was read before,
    while no reading is due, and the stage means the same.
    """
    due = node.inputs[0].producer
    is_reading = due in job.pipeline.sources and isinstance(
        job.pipeline.sources[due].spec, ReadBySparkSpec
    )
    is_same = lineage.fingerprint(node.uid) == plan.fingerprints.get(node.uid)
    if not is_reading or plan.source(due).slices or lineage.stage(node.uid) is None or not is_same:
        return node
    return without_reading(node)


def _kept(node: StageNode, before: Lineage, now: Lineage) -> dict[str, StageState | None]:
    """The states of which a function is given the rows, by their stages: the previous ones of
    several results, and those behind this epoch of streams that it reads as they are.
    """
    code = node.operation
    if not isinstance(code, SparkCode):
        return {}
    return {uid: before.stage(uid) for uid in code.previous_of} | {
        given.producer: now.stage(given.producer)
        for name, given in zip(code.names, node.inputs, strict=True)
        if name in code.current
    }


def _adopted(uid: str, plan: CheckpointPlan, lineage: Lineage) -> Adoption | None:
    """The change that a stage makes of its state at once, unless it is recomputed, and has none."""
    if uid in plan.recomputed:
        return None
    return adoption(uid, lineage.fingerprint(uid), plan.fingerprints.get(uid))


def _republished(job: Job, uid: str, plan: CheckpointPlan, lineage: Lineage) -> tuple[str, ...]:
    """The sinks that a stage sends its whole result; one that is recomputed sends it anyway."""
    if uid in plan.recomputed:
        return ()
    sinks = (sink.uid for sink in job.pipeline.sinks_of(uid))
    return tuple(
        sink
        for sink in sinks
        if adoption(sink, lineage.fingerprint(sink), plan.fingerprints.get(sink)) is not None
    )


def _require_current(pending: PendingCheckpoint, stage: str, attempt: int) -> None:
    checkpoint_id = pending.checkpoint_id
    if stage in pending.overtaken:
        raise FencedError(f"stage {stage!r} was overtaken in checkpoint {checkpoint_id}")
    if attempt != pending.attempt_of(stage):
        raise FencedError(
            f"stage {stage!r} of checkpoint {checkpoint_id} is at attempt "
            f"{pending.attempt_of(stage)}; attempt {attempt} was overtaken"
        )


def _require_planned(plan: CheckpointPlan, stage: str) -> None:
    if all(task.uid != stage for task in plan.tasks):
        raise ConfigurationError(
            f"checkpoint {plan.checkpoint_id} was triggered before stage {stage!r} was declared; "
            "let it fail and restore the job: a chain changes at a restore only"
        )


def _require_meant(job: Job, plan: CheckpointPlan, state: CoordinatorState) -> None:
    """Raises ConfigurationError when the declaration does not mean what the plan's did: the state
    that this epoch leaves would not be that of which the checkpoint says that it is.
    """
    declared = fingerprints(job.pipeline, state.configuration.params)
    for uid, planned in plan.fingerprints.items():
        if declared.get(uid, planned) != planned:
            raise ConfigurationError(
                f"checkpoint {plan.checkpoint_id} was triggered when {uid!r} was declared "
                "otherwise than now; let it fail and go on: the next one compares the declaration "
                "with its state"
            )


def _acknowledge_nothing(run: StageRun) -> tuple[Ack, ...]:
    """The acks of an unaligned stage that cannot read yet: the columns of an input are unknown.

    Its data in flight waits, and so does event time, or these rows would be late.
    """
    task, before = run.task, run.before
    return tuple(
        Ack(
            checkpoint_id=run.plan.checkpoint_id,
            subtask=subtask,
            attempt=run.attempt,
            state=state,
            watermark_ms=before.watermark_ms if before is not None else MIN_WATERMARK,
        )
        for subtask, state in zip(task.subtasks, assigned_state(before, task), strict=True)
    )


def _run(run: StageRun, pending: PendingCheckpoint, lineage: Lineage) -> tuple[_Snapshot, ...]:
    """Raises StageFailed, also where Spark lost a part of the chain in each run."""
    error: StageFailed | None = None
    for _ in range(RUNS_OF_A_CHAIN):
        with views_of_its_call(run):
            chain, done, error = _collected(run, pending, lineage)
        if error is None:
            acks = [execution.ack for execution in done]
            return tuple(
                _Snapshot(
                    deployed.run,
                    tuple(ack for ack in acks if ack.subtask.stage == deployed.run.node.uid),
                    deployed.tables,
                )
                for deployed in chain
            )
        log.warning("a part of the chain was lost %s: %s", _of(run), error)
    assert error is not None
    raise error


def _collected(
    run: StageRun, pending: PendingCheckpoint, lineage: Lineage
) -> tuple[Sequence[Deployment], Sequence[Execution], StageFailed | None]:
    """The stages that ran chained in one Spark job, and the executions of their subtasks.

    With an error the job may begin again, in the same attempt: no subtask has acknowledged.
    """
    chain: tuple[Deployment, ...] = ()
    try:
        chain = deploy_chain(run, pending, lineage)
        done = _executions(chain[-1])
        if not done and not chain[0].by_spark:
            log.info("rows are left to Spark %s", _of(run))
            chain = deploy_chain(run, pending, lineage, by_spark=True)
            done = _executions(chain[-1])
        if not done and chain[0].has_no_rows():
            # Its filters contradict each other: Spark starts no task for rows that cannot be.
            log.info("Spark has started no task, for no rows %s", _of(run))
            chain = deploy_chain(run, pending, lineage, without_rows=True)
            done = _executions(chain[-1])
    except SluiceError:
        raise
    except Exception as error:
        failure = stage_failure([deployed.run for deployed in chain] or [run], error)
        if has_lost_rows(failure):
            return chain, (), failure
        raise failure from error
    mixture = mixture_in([deployed.run.node.uid for deployed in chain], done)
    return chain, done, None if mixture is None else _mixed(mixture)


def deploy_chain(
    run: StageRun,
    pending: PendingCheckpoint,
    lineage: Lineage,
    *,
    by_spark: bool = False,
    without_rows: bool = False,
) -> tuple[Deployment, ...]:
    """Deploy the stage of *run* and those that can be chained to it, in their order.

    With *by_spark* Spark reads the rows of the first, *without_rows* it has none.

    Raises:
        ConfigurationError: a stage cannot compute what it declares of its columns.
    """
    chain = [deploy(run, by_spark=by_spark, without_rows=without_rows)]
    while True:
        before = chain[-1]
        node = chained_behind(
            run.job.pipeline, run.configuration, run.plan, before.run.node.uid, lineage
        )
        if node is None:
            break
        stream = StreamInput(
            segments=(), schema=before.stream_schema, watermark_ms=None, driver=run.driver
        )
        behind = replace(
            run,
            node=_forgetting_as_before(node, run.plan, lineage),
            given=StageInput(streams={before.run.node.uid: stream}),
            before=lineage.stage(node.uid),
            attempt=pending.attempt_of(node.uid),
            adopts=_adopted(node.uid, run.plan, lineage),
            republished=_republished(run.job, node.uid, run.plan, lineage),
        )
        deployed = deploy_behind(before, behind)
        if deployed is None:
            break
        chain.append(deployed)
    return tuple(chain)


def _executions(deployed: Deployment) -> list[Execution]:
    """The executions of a chain's last subtasks; none if rows are left to Spark, or no task ran."""
    spec = deployed.spec
    done = deployed.rows.mapped(subtask_of(spec), RESULT_SCHEMA)
    return executions_in(done.collected(), deployed.run.node.uid)


def _mixed(mixture: Mixture) -> StageFailed:
    return _transient(
        mixture.producer,
        f"Spark lost what it had sent to stage {mixture.reader!r} and computed it again, when a "
        "part had been read; a function may have answered otherwise then. Where machines are "
        f"lost often, declare {mixture.reader!r} with disable_chaining()",
    )


def _transient(stage: str, cause: str) -> StageFailed:
    return StageFailed(
        f"stage {stage!r} failed: {cause}", stage=stage, cause=cause, is_transient=True
    )


def _of(run: StageRun) -> str:
    return f"checkpoint_id={run.plan.checkpoint_id} stage={run.node.uid}"


def _acknowledged(snapshots: tuple[_Snapshot, ...]) -> AcknowledgedStage:
    for snapshot in snapshots:
        _require_all_acks(snapshot)
    job, answers = snapshots[0].run.job, [snapshot.answer() for snapshot in snapshots]
    if len(snapshots) == 1:
        (alone,) = snapshots
        counting = job.answers.write(answers[0])  # Another driver's, if the cluster started two.
        snapshots = (replace(alone, acks=counting.acks),)
    elif (stage := job.answers.write_chain(answers)) is not None:
        # What both drivers answer would be a mixture.
        raise _transient(stage, "another driver of the same attempt has acknowledged for it")
    for snapshot in snapshots:
        run = snapshot.run
        log.info("stage acknowledged %s", _of(run))
        if run.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
            publish_early(job, run.plan.checkpoint_id, run.node.uid)
    return AcknowledgedStage(snapshots)


def _require_all_acks(snapshot: _Snapshot) -> None:
    task = snapshot.run.task
    missing = set(task.subtasks) - {ack.subtask for ack in snapshot.acks}
    if missing:
        names = ", ".join(str(subtask) for subtask in sorted(missing))
        is_transform = isinstance(snapshot.run.node.operation, Transform)
        hint = "; a transform must not change the partitioning" if is_transform else ""
        raise StageFailed(f"Spark finished stage {task.uid!r} without an ack of {names}{hint}")


_JVM_ENDED = (
    "Spark's JVM has ended: it was killed, as the kernel's log says, or crashed; had the machine "
    "enough memory? The next run goes on from the last checkpoint"
)


def failure_cause(error: BaseException) -> Cause:
    """The root cause of *error*, raised by Spark, a worker or the user's code."""
    kind = type(error)
    if _is_of_gateway(error):
        return Cause(_JVM_ENDED)
    if kind.__module__.startswith(_SPARK):
        found = root_cause(str(error))
        place = found.place or _user_place(error) or _declared_place(error)
        return Cause(found.summary, place, is_transient=found.is_transient)
    found = cause_of(error)
    is_transient = isinstance(error, StoreUnavailable)
    return Cause(found.summary, found.place, is_transient=is_transient)


def _declared_place(error: BaseException) -> str:
    """The line of the user's code whose expression a server refuses, as soon as anybody asks it
    for columns: ``dataFrameQueryContext`` of Spark.
    """
    # Another session asks its JVM for these, and raises in the user's line.
    is_of_server = type(error).__module__ == "pyspark.errors.exceptions.connect"
    found: Any = getattr(error, "getQueryContext", tuple)() if is_of_server else ()
    for context in found or ():
        if context.contextType().name == "DataFrame":
            file, _, line = context.callSite().rpartition(":")
            if place := code_place(file, line):
                return place
    return ""


def _is_of_gateway(error: BaseException) -> bool:
    """Whether py4j has lost the JVM: nothing listens where it did, or the connection has ended."""
    if type(error).__name__ == "Py4JNetworkError":
        return True
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, OSError) and bool(files) and "/py4j/" in files[-1]


def stage_failure(chain: Sequence[StageRun], error: Exception) -> StageFailed:
    """The error to raise for *error*; the cause is that of the subtask, if one declined.

    Of *chain* the stage is named that declined or that raised; the first one, where a worker died.
    """
    run, answer = _failed(chain, error)
    stage = run.node.uid
    raised = failure_cause(error)
    cause = raised if answer is None else root_cause(answer.message)
    what = _reading(run)
    over = f" over {what}" if what else ""
    return StageFailed(
        f"stage {stage!r} failed{over}: {cause}",
        stage=stage,
        cause=str(cause),
        is_transient=raised.is_transient or _LOST in str(cause),
        is_declined=answer is not None and answer.reason is not Reason.TASK_FAILURE,
    )


def has_lost_rows(failure: StageFailed) -> bool:
    """Whether Spark gave up because it lost rows that had been read in part, and computed others.

    Blocks differ each time: they say which execution they are of, or which file has their rows.
    """
    return _LOST in failure.cause


def _failed(chain: Sequence[StageRun], error: Exception) -> tuple[StageRun, Decline | None]:
    """The run that failed, and the answer of its subtask, if that said why."""
    runs = {run.node.uid: run for run in chain}
    plan = chain[0].plan
    for decline in chain[0].job.answers.declines(plan.checkpoint_id):
        run = runs.get(decline.subtask.stage)
        if run is not None and (run.attempt, plan.token) == (decline.attempt, decline.plan):
            return run, decline
    raised = stage_in("".join(traceback.format_exception(error)))
    return runs.get(raised, chain[0]), None


def _reading(run: StageRun) -> str:
    """The records of sources that the stage was reading, or the number of partitions if many."""
    spans: dict[str, tuple[int, int]] = {}
    for source in run.job.pipeline.sources_of(run.node.uid):
        for piece in run.plan.source(source.uid).slices:
            end = piece.first_record + piece.records
            first, last = spans.get(piece.partition, (piece.first_record, end))
            spans[piece.partition] = min(first, piece.first_record), max(last, end)
    if len(spans) > NAMED_PARTITIONS:
        return f"{len(spans)} partitions from {min(spans)} to {max(spans)}"
    # From 1, as editors count lines.
    return ", ".join(f"records {a + 1} to {b} of {name}" for name, (a, b) in spans.items())


def _user_place(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback of *error*, on this machine."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = (code_place(frame.filename, frame.lineno or 0) for frame in frames)
    return next(filter(None, places), "")
