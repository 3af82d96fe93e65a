"""The snapshot to restore, and its check: the rules M01 to M06 of the conformance README.

M01 and M02 also promise something of files: that the first checkpoint of NO_CLAIM shares none is
the plan's ``is_full``, and deleting a claimed savepoint the garbage collector's.  Behind what has
finished only what has finished may stand, as Flink's VertexFinishedStateChecker has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sluice.core.completed import CheckpointMetadata, InFlightData, StageState, SubtaskState
from sluice.core.configuration import ClaimMode, JobStatus, Retention
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SavepointId, SubtaskId
from sluice.core.plan import SnapshotOrigin, SourceCut
from sluice.core.restoring import (
    Choice,
    DeclaredStage,
    Latest,
    Observed,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
    Stop,
    choose,
    decide_restore,
    late_behind_a_drain,
    problems_behind_the_end,
)
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableComparison, TableDecision
from sluice.core.timeline import TimelineComparison
from sluice.core.transitions import NO_CONSENT, Consent, Fingerprint
from tests.builders import (
    a_checkpoint,
    a_submitted,
    after,
    completed,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import incarnations, job_failed
from tests.property.core.completed_checkpoints import a_metadata

NO_CLAIM = RestoreOptions()
CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)
X = SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="x")
ELSEWHERE = SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://other", pipeline="auctions")
A = DeclaredStage(uid="a", parallelism=2)
FILE = SegmentHandle(key="shared/a/1", size_bytes=10, rows=1, checksum="c")


def a_stage(uid: str, *, has_state: bool = True, max_parallelism: int = 128) -> StageState:
    """A stage of one subtask, whose state is inline."""
    segment = SegmentHandle(key="", size_bytes=1, rows=1, checksum="c", inline=b"x")
    state = (StateHandle(segment=segment),) if has_state else ()
    return StageState(
        uid=uid,
        parallelism=1,
        max_parallelism=max_parallelism,
        subtasks=(SubtaskState(subtask=SubtaskId(uid, 0), state=state, output=()),),
        watermark_ms=0,
        in_flight=(InFlightData(producer="b", segments=(FILE,), schema=b""),),
    )


def judge(
    *stages: StageState,
    declared: DeclaredStage = A,
    options: RestoreOptions = NO_CLAIM,
    size: int | None = FILE.size_bytes,
    source_problems: tuple[str, ...] = (),
) -> RestoreApproval | Stop:
    observed = Observed(
        metadata=a_metadata(7, *stages), sizes={FILE: size}, source_problems=source_problems
    )
    choice = Choice(checkpoint_id=X.checkpoint_id, origin=X)
    return decide_restore(a_submitted(), choice, observed, [declared], options)


def problem_of(decision: Choice | RestoreApproval | Stop) -> str:
    """The problem that stops it, which is the only one."""
    assert isinstance(decision, Stop)
    (problem,) = decision.problems
    return problem


MEANT = {"a": Fingerprint(operator="aggregate", columns={"n": "count()"})}
ANEW = {"a": Fingerprint(operator="aggregate", columns={"n": "sum(x)"})}


def judged(
    state: CoordinatorState,
    options: RestoreOptions = NO_CLAIM,
    *,
    declared: Mapping[str, Fingerprint] = ANEW,
    choice: Choice | None = None,
) -> RestoreApproval | Stop:
    """The restore of a checkpoint whose state has another meaning than the declared one."""
    metadata = replace(a_metadata(7, a_stage("a")), fingerprints=MEANT)
    observed = Observed(metadata=metadata, sizes={FILE: 10}, fingerprints=declared)
    chosen = choice or Choice(checkpoint_id=X.checkpoint_id, origin=X)
    return decide_restore(state, chosen, observed, [A], options)


def test_state_of_another_meaning_needs_a_consent_that_lasts_until_the_next_checkpoint() -> None:
    refused = judged(a_submitted())
    taken = judged(a_submitted(), RestoreOptions(consent=Consent(begun=("a.n",))))
    assert isinstance(taken, RestoreApproval)
    consent = taken.consent
    restored = replace(a_submitted(), base=X.checkpoint_id, origin=X, consent=consent)
    again = judged(restored)
    elsewhere = judged(replace(restored, origin=None))
    put_back = judged(restored, declared=MEANT)
    otherwise = judged(restored, declared={"a": replace(ANEW["a"], columns={"n": "max(x)"})})

    assert problem_of(refused).startswith("stage 'a': column 'n' was count() and is now sum(x);")
    assert consent == Consent(begun=("a.n",), meant=ANEW)
    assert taken.changes == ("'a.n' begins anew, with the rows from here on",)
    assert isinstance(again, RestoreApproval)
    assert isinstance(elsewhere, Stop)
    assert isinstance(put_back, RestoreApproval)
    assert put_back.consent == NO_CONSENT, "its state goes on"
    assert isinstance(otherwise, Stop)


def test_what_takes_rows_back_does_not_begin_anew_with_such_rows_in_flight() -> None:
    updated = {"a": replace(ANEW["a"], updates_from=("b",)), "b": Fingerprint(operator="latest")}
    options = RestoreOptions(consent=Consent(begun=("a", "b")))

    decision = judged(a_submitted(), options, declared=updated)

    assert "'a' cannot begin anew, as updates are in flight to it" in problem_of(decision)
    assert isinstance(
        judged(a_submitted(), RestoreOptions(consent=Consent(begun=("a",)))), RestoreApproval
    )


def test_what_is_recomputed_is_said_unless_rows_are_in_flight_to_it() -> None:
    sender = Fingerprint(operator="latest", holds=("u",))
    before = {"b": sender, "a": replace(MEANT["a"], updates_from=("b",), recomputed_from="b")}
    declared = {"b": sender, "a": replace(before["a"], columns=ANEW["a"].columns)}

    def decision(stage: StageState) -> RestoreApproval | Stop:
        metadata = replace(a_metadata(7, stage), fingerprints=before)
        observed = Observed(metadata=metadata, sizes={FILE: 10}, fingerprints=declared)
        chosen = Choice(checkpoint_id=X.checkpoint_id, origin=X)
        return decide_restore(a_submitted(), chosen, observed, [A], NO_CLAIM)

    aligned = decision(replace(a_stage("a"), in_flight=()))
    assert isinstance(aligned, RestoreApproval)
    (change,) = aligned.changes
    assert change.endswith("is now sum(x): recomputed from the rows of stage 'b'")
    assert "could not be taken back as they were sent" in problem_of(decision(a_stage("a")))


def test_a_job_without_checkpoints_starts_from_empty() -> None:
    choice = choose(a_submitted(), Latest(), NO_CLAIM)

    assert choice == Choice(checkpoint_id=None)
    assert decide_restore(a_submitted(), choice, Observed(), [A], NO_CLAIM) == RestoreApproval(
        choice=choice
    )


def test_the_latest_is_what_the_job_would_continue_now() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    assert choose(state, Latest(), NO_CLAIM) == Choice(checkpoint_id=CheckpointId(2))
    assert choose(after(state, restored(1, tables=TableDecision())), Latest(), NO_CLAIM) == Choice(
        checkpoint_id=CheckpointId(1)
    )


def test_m03_a_failure_before_the_first_checkpoint_recovers_from_the_same_snapshot() -> None:
    state = after(a_submitted(), *a_checkpoint(1), restored(7, savepoint="x"))

    failed = after(state, job_failed(generation=2))

    assert choose(failed, Latest(), NO_CLAIM) == Choice(checkpoint_id=CheckpointId(7), origin=X)


def test_a_job_whose_checkpoints_went_with_it_does_not_begin_anew_in_silence() -> None:
    retention = Retention.NEVER_RETAIN_AFTER_TERMINATION
    ended = after(a_submitted(retention=retention), *a_checkpoint(1), stopped(JobStatus.CANCELED))

    assert problem_of(choose(ended, Latest(), NO_CLAIM)) == (
        "the job is CANCELED, and its checkpoints were deleted when it ended "
        "(NEVER_RETAIN_AFTER_TERMINATION); begin anew ('sluice run PIPELINE "
        "--fresh'), or restore a savepoint"
    )
    anew = after(ended, submitted(generation=2))
    assert choose(anew, Latest(), NO_CLAIM) == Choice(checkpoint_id=None)


def test_only_a_retained_checkpoint_can_be_named() -> None:
    state = after(a_submitted(num_retained=2), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, *a_checkpoint(3, parent=2))

    assert choose(state, Choice(CheckpointId(2)), NO_CLAIM) == Choice(checkpoint_id=CheckpointId(2))
    assert problem_of(choose(state, Choice(CheckpointId(1)), NO_CLAIM)) == (
        "checkpoint 1 is not retained; retained are: 2, 3"
    )
    assert problem_of(choose(a_submitted(), Choice(CheckpointId(1)), NO_CLAIM)) == (
        "checkpoint 1 is not retained; retained are: none"
    )


@pytest.mark.parametrize(
    ("options", "claimed"), [(NO_CLAIM, ()), (CLAIM, incarnations("x"))], ids=["M01", "M02"]
)
def test_a_savepoint_is_its_owners_unless_it_is_claimed(
    options: RestoreOptions, claimed: tuple[SavepointId, ...]
) -> None:
    choice = choose(a_submitted(), Choice.of(X), options)

    assert choice == Choice(checkpoint_id=CheckpointId(7), origin=X)
    state = after(a_submitted(), restored(7, savepoint="x", claim_mode=options.claim_mode))
    assert (state.claimed_savepoints, state.claim_mode) == (claimed, options.claim_mode)


def test_a_snapshot_of_another_root_can_be_restored_but_not_claimed() -> None:
    assert choose(a_submitted(), Choice.of(ELSEWHERE), NO_CLAIM) == Choice(
        checkpoint_id=CheckpointId(7), origin=ELSEWHERE
    )
    assert problem_of(choose(a_submitted(), Choice.of(ELSEWHERE), CLAIM)) == (
        "checkpoint 7 of s3://other/auctions lies in another root and cannot be claimed; restore "
        "it with NO_CLAIM, which copies what it needs with the first checkpoint"
    )


def test_what_is_there_is_restored_with_the_files_it_needs() -> None:
    assert judge(a_stage("a")) == RestoreApproval(
        choice=Choice(checkpoint_id=CheckpointId(7), origin=X), files=(FILE,)
    )


def test_a_snapshot_that_cannot_be_read_stops_the_restore_as_damage() -> None:
    choice = Choice(checkpoint_id=X.checkpoint_id, origin=X)
    unreadable = Observed(unreadable="_metadata of checkpoint 7 is damaged")

    decision = decide_restore(a_submitted(), choice, unreadable, [A], NO_CLAIM)

    assert decision == Stop(problems=("_metadata of checkpoint 7 is damaged",), is_damaged=True)


def test_m04_state_that_has_no_stage_any_more_is_named_with_the_flag_that_drops_it() -> None:
    snapshot = (a_stage("a"), a_stage("b"), a_stage("c", has_state=False))

    assert problem_of(judge(*snapshot)) == (
        "stage 'b' has state but is not in the pipeline any more "
        "(allow non-restored state to drop it)"
    )


def test_m04_a_stage_without_state_is_skipped() -> None:
    restore = judge(a_stage("a"), a_stage("b", has_state=False))

    assert isinstance(restore, RestoreApproval)
    assert restore.dropped_stages == ()


def test_m04_state_is_dropped_on_demand_and_named() -> None:
    options = RestoreOptions(allow_non_restored_state=True)

    restore = judge(a_stage("a"), a_stage("b"), options=options)

    assert isinstance(restore, RestoreApproval)
    assert restore.dropped_stages == ("b",)


def test_m05_another_max_parallelism_is_refused() -> None:
    declared = replace(A, max_parallelism=256)

    assert problem_of(judge(a_stage("a"), declared=declared)) == (
        "stage 'a' declares max parallelism 256, but its state has 128, which is fixed for life"
    )
    assert isinstance(
        judge(a_stage("a"), declared=replace(A, max_parallelism=128)), RestoreApproval
    )


def test_m06_a_parallelism_above_the_saved_max_parallelism_is_refused() -> None:
    snapshot = a_stage("a", max_parallelism=4)

    assert problem_of(judge(snapshot, declared=replace(A, parallelism=5))) == (
        "stage 'a' has parallelism 5, which exceeds its max parallelism 4"
    )
    assert isinstance(judge(snapshot, declared=replace(A, parallelism=4)), RestoreApproval)


def test_a_new_source_before_a_finished_stage_is_refused_whatever_state_is_dropped() -> None:
    ended = replace(a_stage("a"), is_finished=True)
    options = RestoreOptions(allow_non_restored_state=True)

    problem = problem_of(judge(ended, declared=replace(A, reads=("late",)), options=options))

    assert problem.startswith(
        "stage 'a' has finished in checkpoint 7, and source 'late' before it is new: "
    )
    assert isinstance(judge(ended), RestoreApproval)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (None, "shared/a/1 is missing, expected 10 bytes"),
        (3, "shared/a/1 has 3 bytes, expected 10 bytes"),
    ],
)
def test_a_file_that_is_missing_or_cut_short_is_named(size: int | None, problem: str) -> None:
    assert problem_of(judge(a_stage("a"), size=size)) == problem


def test_every_problem_is_named_at_once() -> None:
    decision = judge(
        a_stage("b"), a_stage("a", max_parallelism=1), size=None, source_problems=("offset 9",)
    )

    assert isinstance(decision, Stop)
    assert [problem.split()[0] for problem in decision.problems] == [
        "stage", "stage", "shared/a/1", "offset"
    ]  # fmt: skip


def an_uncommitted() -> CoordinatorState:
    state = after(a_submitted(), *a_checkpoint(6), triggered(7, parent=6), completed(7))
    return after(state, job_failed())


@pytest.mark.parametrize(
    ("choice", "replays"),
    [
        (Choice(checkpoint_id=CheckpointId(7)), True),
        (Choice(checkpoint_id=CheckpointId(6)), False),
        (Choice(checkpoint_id=CheckpointId(7), origin=X), False),
    ],
    ids=["its own, not committed", "its own, committed", "another's of the same id"],
)
def test_the_commit_of_an_own_checkpoint_is_replayed(choice: Choice, replays: bool) -> None:
    observed = Observed(metadata=a_metadata(choice.checkpoint_id or 0))

    restore = decide_restore(an_uncommitted(), choice, observed, [], NO_CLAIM)

    assert isinstance(restore, RestoreApproval)
    assert restore.replays_commit is replays


def test_in_flight_data_is_dropped_only_of_the_checkpoint_that_was_named() -> None:
    dropped = judge(a_stage("a"), options=RestoreOptions(ignore_in_flight_of=CheckpointId(7)))
    refused = judge(a_stage("a"), options=RestoreOptions(ignore_in_flight_of=CheckpointId(6)))

    assert isinstance(dropped, RestoreApproval)
    assert dropped.ignores_in_flight
    problem = "the data in flight of checkpoint 6 cannot be ignored: savepoint x is restored"
    assert refused == Stop(problems=(problem,))


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (Choice(None), "the empty state"),
        (Choice(CheckpointId(7)), "checkpoint 7"),
        (Choice.of(X), "savepoint x"),
    ],
)
def test_a_choice_is_named_by_what_is_restored(choice: Choice, name: str) -> None:
    assert str(choice) == name


def test_what_becomes_of_the_tables_is_decided_with_the_restore() -> None:
    ahead = TableComparison(
        sink="alerts", version=6, comparison=TimelineComparison(ahead=(7,), newest=7)
    )
    observed = Observed(metadata=a_metadata(7), tables=[ahead])
    choice = Choice(checkpoint_id=CheckpointId(7))
    options = RestoreOptions(roll_back_tables=True)

    decided = decide_restore(an_uncommitted(), choice, observed, [], options)

    assert ahead.ahead is not None
    assert isinstance(decided, RestoreApproval)
    assert decided.tables_ahead == (ahead.ahead,)
    assert decided.tables == TableDecision(
        versions={"alerts": 6}, newest=7, continues=CheckpointId(7), roll_back=True
    )


def test_a_table_that_does_not_agree_stops_a_restore_of_anything() -> None:
    lacking = TableComparison(sink="alerts", version=7, comparison=TimelineComparison(lacks=True))
    theirs = TableComparison(
        sink="alerts", version=None, comparison=TimelineComparison(other_life="theirs")
    )

    for metadata, table in ((a_metadata(7), lacking), (None, theirs)):
        choice = Choice(checkpoint_id=metadata.checkpoint_id if metadata else None)
        observed = Observed(metadata=metadata, tables=[table])
        decided = decide_restore(a_submitted(), choice, observed, [], NO_CLAIM)
        assert problem_of(decided) == table.problem(roll_back=False, accepts=False)
        accepted = decide_restore(
            a_submitted(), choice, observed, [], RestoreOptions(accept_tables=True)
        )
        assert isinstance(accepted, RestoreApproval)


@pytest.mark.parametrize(
    ("target", "what"), [(Latest(), "latest checkpoint"), (Choice(CheckpointId(1)), "1")]
)
def test_only_a_savepoint_can_be_claimed(target: RestoreTarget, what: str) -> None:
    state = after(a_submitted(), *a_checkpoint(1))

    chosen = choose(state, target, RestoreOptions(claim_mode=ClaimMode.CLAIM))

    assert isinstance(chosen, Stop)
    assert chosen.problems[0].startswith("only a savepoint is claimed: ")
    assert what in chosen.problems[0]


def test_a_claimed_savepoint_that_the_job_stands_at_may_be_restored_again() -> None:
    state = after(a_submitted(), restored(7, savepoint="mine", claim_mode=ClaimMode.CLAIM))

    chosen = choose(state, Latest(), RestoreOptions(claim_mode=ClaimMode.CLAIM))

    assert chosen == Choice(checkpoint_id=CheckpointId(7), origin=state.origin)


Chain = Mapping[str, Sequence[str]]


def an_ended_stage(
    uid: str, *, ended: bool = True, marked: bool = False, flies: bool = False
) -> StageState:
    """``marked``: a later checkpoint than its last found it finished."""
    return replace(
        a_stage(uid, has_state=False),
        watermark_ms=MAX_WATERMARK if ended else 0,
        in_flight=(InFlightData(producer="s", segments=(FILE,) if flies else (), schema=b""),),
        is_finished=marked,
    )


def a_snapshot_of(
    *stages: StageState, ended: Mapping[str, bool] | None = None
) -> CheckpointMetadata:
    """``ended``: whether each source was exhausted."""
    sources = tuple(
        SourceCut(uid=uid, position=(), exhausted=exhausted)
        for uid, exhausted in (ended or {"s": True}).items()
    )
    return a_metadata(7, *stages, sources=sources)


BOTH = (an_ended_stage("a"), an_ended_stage("b"))
REFUSED: dict[str, tuple[CheckpointMetadata, Chain, str]] = {
    "a new stage between a source and its stage": (
        a_snapshot_of(*BOTH), {"new": ["s"], "a": ["new"], "b": ["a"]}, "a<stage new is new"
    ),
    "a new stage between two": (
        a_snapshot_of(*BOTH), {"a": ["s"], "new": ["a"], "b": ["new"]}, "b<stage new is new"
    ),
    "new stages in a row": (
        a_snapshot_of(*BOTH), {"a": ["s"], "m": ["a"], "n": ["m"], "b": ["n"]}, "b<stage n is new"
    ),
    "a new source beside the old one": (
        a_snapshot_of(*BOTH), {"a": ["s", "t"], "b": ["a"]}, "a<source t is new"
    ),
    "a new source alone": (a_snapshot_of(*BOTH), {"a": ["t"], "b": ["a"]}, "a<source t is new"),
    "a stage that still runs": (
        a_snapshot_of(
            an_ended_stage("a"),
            an_ended_stage("b", marked=True),
            an_ended_stage("c", ended=False),
            ended={"s": True, "u": False},
        ),
        {"a": ["s"], "c": ["u"], "b": ["a", "c"]},
        "b<stage c has not",
    ),
    "a source that still gives records": (
        a_snapshot_of(an_ended_stage("a", marked=True), ended={"s": True, "u": False}),
        {"a": ["s", "u"]},
        "a<source u has not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_what_still_gives_rows_before_a_finished_stage_is_refused_by_both_names(
    change: str,
) -> None:
    snapshot, chain, expected = REFUSED[change]

    (problem,) = problems_behind_the_end(snapshot, chain)

    stage, _, before = expected.partition("<")
    kind, uid, how = before.split(" ", 2)
    assert problem == (
        f"stage {stage!r} has finished in checkpoint 7, and {kind} {uid!r} before it {how}: its "
        f"rows would come after the end of all input. Put nothing new before {stage!r}, or "
        f"give {stage!r} a new uid and allow non-restored state, so that it begins anew"
    )


TAKEN: dict[str, tuple[CheckpointMetadata, Chain]] = {
    "the same chain": (a_snapshot_of(*BOTH), {"a": ["s"], "b": ["a"]}),
    "the same chain, found finished": (
        a_snapshot_of(an_ended_stage("a", marked=True), an_ended_stage("b", marked=True)),
        {"a": ["s"], "b": ["a"]},
    ),
    "a new stage behind": (a_snapshot_of(*BOTH), {"a": ["s"], "b": ["a"], "new": ["b"]}),
    "a new stage before one that still runs": (
        a_snapshot_of(an_ended_stage("a", ended=False), ended={"s": False}),
        {"new": ["s"], "a": ["new"]},
    ),
    "a new stage before one that has not consumed all": (
        a_snapshot_of(an_ended_stage("a"), an_ended_stage("b", flies=True)),
        {"a": ["s"], "new": ["a"], "b": ["new"]},
    ),
    "a drained savepoint, whose sources go on": (
        a_snapshot_of(*BOTH, ended={"s": False}), {"new": ["s"], "a": ["new"], "b": ["a"]}
    ),
    "event time ended by one input, while the other was idle": (
        a_snapshot_of(an_ended_stage("a"), ended={"s": True, "idle": False}), {"a": ["s", "idle"]}
    ),
    "a stage that begins anew": (a_snapshot_of(*BOTH), {"new": ["s"], "a2": ["new"]}),
    "the same input twice": (a_snapshot_of(an_ended_stage("a")), {"a": ["s", "s"]}),
}  # fmt: skip


@pytest.mark.parametrize("change", TAKEN)
def test_every_other_chain_may_continue(change: str) -> None:
    snapshot, chain = TAKEN[change]

    assert problems_behind_the_end(snapshot, chain) == []


@pytest.mark.parametrize(
    ("source_ended", "by_event_time", "warns"),
    [(False, True, True), (True, True, False), (False, False, False)],
    ids=["its source goes on", "its source has ended, too", "it has no late rows"],
)
def test_a_restore_that_sends_everything_behind_a_drain_to_late_says_so(
    source_ended: bool, by_event_time: bool, warns: bool
) -> None:
    drained = replace(a_snapshot_of(an_ended_stage("a"), ended={"s": source_ended}), drains=True)
    stage = replace(A, reads=("s",), goes_by_event_time=by_event_time)

    warnings = late_behind_a_drain(drained, [stage])

    expected = (
        "stage 'a' saw the end of event time in checkpoint 7, as the job was drained: every row "
        "from now on is late, and goes to the side output 'a.late'. To go on in time restore a "
        "checkpoint or savepoint from before that, or give 'a' a new uid and allow non-restored "
        "state, so that it begins anew"
    )
    assert list(warnings) == [expected] * warns
