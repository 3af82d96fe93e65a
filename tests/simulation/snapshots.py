"""The invariants of completed checkpoints and savepoints, checked in the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.jobs import SINK
from sluice.core.answers import Ack
from sluice.core.completed import CheckpointMetadata, StageState, SubtaskState
from sluice.core.handles import SegmentHandle
from sluice.core.ids import SavepointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import TaskPlan
from sluice.core.savepoints import SavepointPointer
from sluice.core.state import CoordinatorState
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import decode_answer, decode_metadata
from tests.simulation.broken import Broken
from tests.simulation.dataflow import KEYS, Row, checksum, live_rows, pure, reference, rows_of

if TYPE_CHECKING:
    from tests.simulation.invariants import Invariants

NAMES = PipelinePaths("auctions")


def check_completed(
    seen: Invariants, checkpoint_id: int, before: CoordinatorState
) -> CheckpointMetadata:
    """Every planned ack, of one planned attempt a stage; every file; one consistent cut."""
    key = seen.paths.metadata(checkpoint_id)
    raw = seen.read(key)
    if raw is None:
        raise Broken(2, "completed without metadata", key)
    metadata = decode_metadata(raw, key)
    pending = before.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise Broken(1, "completed, but it was not pending", f"{checkpoint_id}")
    if metadata.generation != before.generation:
        raise Broken(10, "completed with metadata of another generation", key)
    if metadata.parent != before.base:
        raise Broken(3, "completed on another parent", f"{metadata.parent}, not {before.base}")
    if [s.uid for s in metadata.stages if not s.is_finished] != [t.uid for t in pending.tasks]:
        raise Broken(2, "completed with other stages than planned", key)
    acks = _acks(seen, checkpoint_id)
    for stage in metadata.stages:
        if not stage.is_finished and not stage.is_overtaken:
            _check_acks(seen, metadata, stage, acks, pending)
    _check_files(seen, _files(metadata), 2)
    check_cut(seen, metadata)
    check_consumed(seen, metadata, pending)
    check_continued(seen, metadata)
    claimed = tuple(map(NAMES.incarnation, before.claimed_savepoints))
    for name in _in_savepoints(metadata):
        if not name.startswith(claimed):
            raise Broken(9, "the job still needs a savepoint", name)
    return metadata


def check_cut(seen: Invariants, metadata: CheckpointMetadata) -> None:
    """Every stage has absorbed the records before the barrier, each once, but for those that are in
    flight to it: what the stage before it has said and it has not read.
    """
    upstream = metadata.sources[0].position[0].offset
    for depth, stage in enumerate(metadata.stages):
        absorbed = pure(_absorbed(seen, depth, stage))
        if absorbed != reference(depth, len(absorbed)):
            what = "a stage's state is not that of a barrier"
            raise Broken(3, what, f"{stage.uid} at {metadata.checkpoint_id}")
        in_flight = pure(in_flight_to(seen, stage))
        missing = reference(depth - 1, upstream)[len(absorbed) :] if depth else []
        if len(absorbed) + len(in_flight) != upstream or in_flight != missing:
            what = "what a stage has not absorbed is not in flight to it"
            raise Broken(3, what, f"{stage.uid} at {metadata.checkpoint_id}")
        upstream = len(absorbed)


def absorbed_by_the_last(seen: Invariants, metadata: CheckpointMetadata) -> int:
    """The number of records that the last stage, which feeds the sink, has absorbed."""
    return len(_absorbed(seen, len(metadata.stages) - 1, metadata.stages[-1]))


def in_flight_to(seen: Invariants, stage: StageState) -> list[Row]:
    return [row for file in stage.in_flight_segments for row in rows_of(_body(seen, file, 2))]


def check_chained(seen: Invariants, ack: Ack) -> None:
    """Behind an ack of a chained stage are all those of the stages behind it, in the attempts of
    one moment at which it counted.
    """
    checkpoint_id, stage = ack.checkpoint_id, ack.subtask.stage
    if not ack.is_chained or checkpoint_id not in seen.plans:
        return
    tasks = seen.plans[checkpoint_id].tasks
    place = next(at for at, task in enumerate(tasks) if task.uid == stage)
    counted = [a for a in seen.attempts[checkpoint_id] if a.get(stage, 1) == ack.attempt]
    if counted and not any(_has_chain(seen, checkpoint_id, tasks[place:], a) for a in counted):
        what = "a chained stage has acknowledged, and one behind it has not"
        raise Broken(12, what, f"{ack.subtask} of {checkpoint_id}")


def _has_chain(
    seen: Invariants, checkpoint_id: int, tasks: Sequence[TaskPlan], attempts: Mapping[str, int]
) -> bool:
    """Whether the stages behind the first have acknowledged, up to the one that ends the chain."""
    for task, behind in pairwise(tasks):
        if (checkpoint_id, task.uid, attempts.get(task.uid, 1)) not in seen.chained:
            return True
        have = seen.acknowledged.get((checkpoint_id, behind.uid, attempts.get(behind.uid, 1)), ())
        if len(have) < behind.parallelism:
            return False
    return True


def check_consumed(
    seen: Invariants, metadata: CheckpointMetadata, pending: PendingCheckpoint
) -> None:
    """What a stage has absorbed in this epoch is what the stage before it says in this checkpoint,
    or had said in the one that it continues.
    """
    for depth, (producer, stage) in enumerate(pairwise(metadata.stages), start=1):
        given = [*seen.in_flight.get((metadata.parent, stage.uid), ())]
        driver = metadata.drivers.get(producer.uid, "")
        given += seen.handed.get((pending.token, producer.uid, driver), ())
        for subtask in producer.subtasks:
            given += [row for file in subtask.output for row in rows_of(_body(seen, file, 2))]
        totals = dict(_absorbed(seen, depth, stage)) if given else {}
        for number, value in given:
            before = totals.get(number - KEYS[depth], 0)
            if number in totals and totals[number] - before != value:
                what = "a stage has consumed what its upstream has not produced"
                raise Broken(3, what, f"{stage.uid} at {metadata.checkpoint_id}: record {number}")


def check_continued(seen: Invariants, metadata: CheckpointMetadata) -> None:
    """What a stage had absorbed in the checkpoint that this one continues, it has still: as that
    one's drivers computed it, whatever others answered.
    """
    parent = seen.metadata.get(metadata.parent or 0)
    if parent is None or metadata.origin is not None:
        return
    for depth, stage in enumerate(metadata.stages):
        before = parent.stage(stage.uid)
        absorbed = {*_absorbed(seen, depth, stage)}
        if before is not None and not absorbed.issuperset(_absorbed(seen, depth, before)):
            what = "a checkpoint does not continue the state of its parent"
            raise Broken(3, what, f"{stage.uid} at {metadata.checkpoint_id}")


def meant_by(seen: Invariants, key: str) -> SavepointId | None:
    """The incarnation that *key* is a file of, if its name means it, complete or not."""
    savepoint = NAMES.savepoint_of(key)
    if savepoint is None:
        return None
    _, pointer = seen.pointers.get(savepoint.name, (0, None))
    is_meant = pointer is not None and pointer.token == savepoint.token and not pointer.is_gone
    return savepoint if is_meant else None


def is_complete(seen: Invariants, savepoint: SavepointId) -> bool:
    """Whether its name means it, and it is whole."""
    _, pointer = seen.pointers.get(savepoint.name, (0, None))
    return pointer is not None and pointer.token == savepoint.token and pointer.is_complete


def check_pointer(seen: Invariants, name: str, number: int, pointer: SavepointPointer) -> None:
    """A name means one incarnation after the other; one that is gone never comes back."""
    newest, before = seen.pointers.get(name, (0, None))
    if number <= newest:
        return  # A stray, which must not count.
    savepoint = SavepointId(name, pointer.token)
    is_own = before is not None and before.token == pointer.token
    if not (before is None or before.is_gone or is_own):
        raise Broken(9, "a savepoint's name is taken from it", name)
    if pointer.token in seen.tokens_gone:
        raise Broken(9, "a savepoint that was gone came back", f"{name}/{pointer.token}")
    if pointer.is_complete:
        metadata = seen.savepoints.get(savepoint)
        raw = seen.read(NAMES.savepoint_metadata(savepoint))
        if metadata is None or raw is None or pointer.digest != checksum(raw):
            raise Broken(9, "a savepoint is complete without its metadata", name)
        _check_files(seen, metadata.files, 9)
    if pointer.is_gone:
        seen.tokens_gone.add(pointer.token)
        is_released = savepoint in seen.head.releasing_savepoints
        if before is not None and before.is_complete and not is_released:
            raise Broken(9, "a savepoint is removed that is not released", name)
        if savepoint in seen.head.savepoints_under_way:
            raise Broken(9, "a savepoint is removed that is being taken", name)
    seen.pointers[name] = number, pointer


def check_savepoint(
    seen: Invariants, savepoint: SavepointId, metadata: CheckpointMetadata
) -> CheckpointMetadata:
    """A copy of a completed checkpoint, whole, and sharing no file with the job."""
    source = seen.metadata.get(metadata.checkpoint_id)
    if source is None:
        raise Broken(9, "a savepoint of what is not completed", savepoint.name)
    for handle in metadata.files:
        if not handle.key.startswith(NAMES.incarnation(savepoint)):
            raise Broken(9, "a savepoint names a file of the job", handle.key)
    _check_files(seen, metadata.files, 9)
    check_cut(seen, metadata)
    return metadata


def files_of_ack(ack: Ack) -> set[str]:
    segments = [*(handle.segment for handle in ack.state), *ack.output]
    staged = {_staged(c.file) for c in ack.committables if c.sink == SINK}
    return {s.key for s in segments if s.key} | staged


def staged_files(metadata: CheckpointMetadata) -> set[str]:
    """For the table of files: any other has copied its rows when it shows them."""
    return {_staged(one.file) for one in metadata.committables if one.sink == SINK}


def _absorbed(seen: Invariants, depth: int, stage: StageState) -> list[Row]:
    return [
        row
        for subtask in stage.subtasks
        for handle in subtask.state
        for row in live_rows(depth, handle, _body(seen, handle.segment, 2))
    ]


def _check_acks(
    seen: Invariants,
    metadata: CheckpointMetadata,
    stage: StageState,
    acks: list[Ack],
    pending: PendingCheckpoint,
) -> None:
    """A stage's state and staged files are those that its subtasks acknowledged in the attempt that
    counts now: what continues the checkpoint stands on that one.
    """
    attempt, what = pending.attempt_of(stage.uid), "a subtask is completed without its ack"
    mine = [ack for ack in acks if ack.subtask.stage == stage.uid and ack.attempt == attempt]
    kept = [ack for part in stage.subtasks for ack in mine if _is_kept(part, ack)]
    if len(kept) == len(mine) == stage.parallelism:
        what = "something else is to be published than was acknowledged"
        staged = {c for ack in kept for c in ack.committables}
        if staged == {*metadata.committables} or not staged:
            return
    raise Broken(2 if "without" in what else 7, what, f"{stage.uid} of {metadata.checkpoint_id}")


def _is_kept(kept: SubtaskState, ack: Ack) -> bool:
    return (kept.subtask, kept.state, kept.output) == (ack.subtask, ack.state, ack.output)


def _check_files(seen: Invariants, files: Iterable[SegmentHandle], number: int) -> None:
    for handle in files:
        _body(seen, handle, number)


def _body(seen: Invariants, segment: SegmentHandle, number: int) -> bytes:
    body = segment.inline if segment.inline is not None else seen.read(segment.key)
    if body is None:
        raise Broken(number, "a file is missing", segment.key)
    if checksum(body) != segment.checksum:
        raise Broken(number, "a file does not match its checksum", segment.key)
    return body


def _files(metadata: CheckpointMetadata) -> list[SegmentHandle]:
    """State and output; what is staged is read when it is published."""
    outputs = [o for stage in metadata.stages for part in stage.subtasks for o in part.output]
    return [*metadata.files, *outputs]


def _in_savepoints(metadata: CheckpointMetadata) -> list[str]:
    return [f.key for f in metadata.files if f.key.startswith(NAMES.savepoints())]


def _acks(seen: Invariants, checkpoint_id: int) -> list[Ack]:
    bucket, folder = seen.world.bucket, seen.paths.answers(checkpoint_id)
    answers = (decode_answer(bucket.objects[key], key) for key in bucket.keys(folder))
    plan = seen.plans[checkpoint_id].token
    return [ack for answer in answers if answer.plan == plan for ack in answer.acks]


def _staged(file: str) -> str:
    return f"{NAMES.table(SINK)}/{file}"
