"""Any event at all, of any generation, about any checkpoint: what a confused bucket could say.

Ids and generations are small, so that events meet each other.
"""

from __future__ import annotations

from hypothesis import strategies as st

from harness.jobs import STAGES
from sluice.core.answers import Ack, Decline
from sluice.core.configuration import (
    CheckpointType,
    ClaimMode,
    JobConfiguration,
    JobStatus,
    Retention,
    Timing,
)
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointingChanged,
    CheckpointRequested,
    CheckpointTriggered,
    DeclineReceived,
    Event,
    HooksRestored,
    JobFailed,
    JobRestored,
    JobStopped,
    JobSubmitted,
    JournalRepaired,
    RequestWithdrawn,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    TriggerFailed,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SavepointId, SubtaskId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.tables import TableDecision
from tests.builders import SUBTASKS, a_plan

STOPS = (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED)

ids = st.integers(1, 9).map(CheckpointId)
generations = st.integers(0, 4)
times = st.integers(0, 10**4)
attempts = st.integers(0, 3)
types = st.sampled_from(CheckpointType)
reasons = st.sampled_from(CheckpointFailureReason)
reasons_to_decline = st.sampled_from([one for one in CheckpointFailureReason if one.is_of_a_task])
stages = st.sampled_from([*STAGES, "elsewhere"])
subtasks = st.sampled_from([*SUBTASKS, SubtaskId("elsewhere", 0), SubtaskId(STAGES[0], 9)])
limits = st.none() | st.integers(0, 2)
configurations = st.builds(
    JobConfiguration,
    num_retained=st.integers(1, 3),
    tolerable_failed_checkpoints=limits,
    max_concurrent=st.integers(1, 3),
    max_queued=st.integers(1, 3),
    min_pause_ms=st.sampled_from([0, 0, 500]),
    interval_during_backlog_ms=st.none() | st.just(700),
    unaligned=st.booleans(),
    retention=st.sampled_from(Retention),
    restart=st.builds(RestartStrategy, type=st.sampled_from(RestartType), attempts=limits),
)
requests = st.builds(
    CheckpointRequest,
    request_id=st.sampled_from("abcdefgh"),
    type=st.sampled_from([CheckpointType.CHECKPOINT] * 8 + list(CheckpointType)),
    is_periodic=st.booleans(),
    is_forced=st.booleans(),
    is_full=st.booleans(),
    requested_at_ms=times,
    expires_at_ms=st.sampled_from([None, None, 2_000]),
    awaits_a_host=st.sampled_from([False, False, True]),
)
origins = st.none() | st.builds(
    SnapshotOrigin,
    checkpoint_id=ids,
    savepoint=st.none() | st.just("theirs"),
    root=st.sampled_from(["", "s3://other"]),
)


@st.composite
def triggers(draw: st.DrawFn) -> CheckpointTriggered:
    checkpoint_id, generation, request = draw(ids), draw(generations), draw(requests)
    plan = a_plan(
        checkpoint_id,
        generation=generation if draw(st.booleans()) else draw(generations),
        parent=draw(st.none() | st.integers(1, checkpoint_id - 1)) if checkpoint_id > 1 else None,
        origin=draw(origins),
        type=request.type,
        drains=draw(st.booleans()),
        triggered_at_ms=draw(times),
    )
    return CheckpointTriggered(generation=Generation(generation), plan=plan, request=request)


timings = st.builds(
    Timing,
    is_paused=st.booleans(),
    interval_ms=st.none() | st.just(600),
    min_pause_ms=st.none() | st.just(300),
    tolerable_failed_checkpoints=limits,
)
lives = st.sampled_from(["", "a", "b", "c"])
decisions = st.builds(
    TableDecision,
    newest=st.integers(0, 12),
    continues=st.none() | ids,
    roll_back=st.booleans(),
    accepts=st.booleans(),
)


@st.composite
def restores(draw: st.DrawFn) -> JobRestored:
    origin = draw(origins)
    return JobRestored(
        at_ms=draw(times),
        generation=Generation(draw(generations)),
        checkpoint_id=draw(st.none() | ids) if origin is None else origin.checkpoint_id,
        origin=origin,
        claim_mode=draw(st.sampled_from(ClaimMode)),
        has_hooks=draw(st.booleans()),
        is_latest=draw(st.booleans()),
        tables=draw(st.none() | decisions),
        life=draw(lives),
        configuration=draw(st.none() | configurations),
    )


@st.composite
def acks_of_one_checkpoint(draw: st.DrawFn) -> Event:
    """Most often one."""
    checkpoint_id = draw(ids)
    answer = st.builds(
        Ack, checkpoint_id=st.just(checkpoint_id), subtask=subtasks, attempt=attempts
    )
    acks = draw(st.lists(answer, max_size=3))
    return AcksReceived(checkpoint_id=checkpoint_id, acks=tuple(acks))


about_a_checkpoint = {"generation": generations, "at_ms": times, "checkpoint_id": ids}
answers = {"checkpoint_id": ids, "subtask": subtasks, "attempt": attempts}
id_lists = st.lists(ids, max_size=3).map(tuple)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        JobSubmitted,
        at_ms=times,
        generation=generations,
        configuration=configurations,
        life=lives,
        tables=decisions,
    ),
    st.builds(CheckpointRequested, generation=generations, at_ms=times, request=requests),
    triggers(),
    st.builds(
        TriggerFailed,
        generation=generations,
        at_ms=times,
        request=requests,
        reason=reasons,
        message=st.just("no"),
    ),
    st.builds(RequestWithdrawn, generation=generations, at_ms=times, request=requests),
    st.builds(
        AttemptStarted, generation=generations, checkpoint_id=ids, stage=stages, attempt=attempts
    ),
    acks_of_one_checkpoint(),
    st.builds(
        DeclineReceived,
        generation=generations,
        at_ms=times,
        decline=st.builds(Decline, **answers, message=st.just("no"), reason=reasons_to_decline),
    ),
    st.builds(AlignmentTimedOut, **about_a_checkpoint, stages=st.lists(stages).map(tuple)),
    st.builds(
        CheckpointCompleted,
        **about_a_checkpoint,
        attempts=st.sampled_from([dict.fromkeys(STAGES, 1), {}, {STAGES[0]: 2, STAGES[1]: 2}]),
        checkpointed_bytes=st.just(1),
        full_bytes=st.just(1),
    ),
    st.builds(CheckpointCommitted, **about_a_checkpoint, discarded=id_lists),
    st.builds(
        CheckpointFailed,
        **about_a_checkpoint,
        reason=reasons,
        is_task_failure=st.booleans(),
        is_task_level=st.booleans(),
    ),
    st.builds(
        SnapshotsDiscarded,
        generation=generations,
        checkpoints=id_lists,
        savepoints=st.sampled_from([(), (SavepointId("theirs", ""),)]),
    ),
    st.builds(
        SavepointsReleased,
        generation=generations,
        savepoints=st.sampled_from([(), (SavepointId("theirs", ""),)]),
        is_disposal=st.booleans(),
    ),
    st.builds(JobFailed, generation=generations, at_ms=times, message=st.just("no")),
    restores(),
    st.builds(RootAdopted, at_ms=times, generation=generations, place=st.just("copy")),
    st.builds(HooksRestored, generation=generations),
    st.builds(TablesRecovered, generation=generations),
    st.builds(CheckpointingChanged, at_ms=times, generation=generations, timing=timings),
    st.builds(
        JournalRepaired,
        at_ms=times,
        generation=generations,
        first=st.just(1),
        last=st.just(1),
        next_checkpoint_id=ids,
        completed=st.none()
        | st.builds(
            CheckpointCompleted,
            **about_a_checkpoint,
            checkpointed_bytes=st.just(1),
            full_bytes=st.just(1),
        ),
    ),
    st.builds(JobStopped, at_ms=times, generation=generations, status=st.sampled_from(STOPS)),
)
