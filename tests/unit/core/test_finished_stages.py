"""Flink's VertexFinishedStateChecker: only what has finished may stand before what has finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sluice.core.completed import CheckpointMetadata, InFlightData, StageState
from sluice.core.configuration import CheckpointType
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, Generation
from sluice.core.plan import SourceCut
from sluice.core.restoring import problems_behind_the_end

Chain = Mapping[str, Sequence[str]]
FILE = SegmentHandle(key="streams/a/1", size_bytes=10, rows=1, checksum="c")


def a_stage(
    uid: str, *, ended: bool = True, marked: bool = False, flies: bool = False
) -> StageState:
    """``marked``: a later checkpoint than its last found it finished."""
    return StageState(
        uid=uid,
        parallelism=1,
        max_parallelism=128,
        subtasks=(),
        watermark_ms=MAX_WATERMARK if ended else 0,
        in_flight=(InFlightData(producer="s", segments=(FILE,) if flies else (), schema=b""),),
        is_finished=marked,
    )


def a_snapshot(*stages: StageState, ended: Mapping[str, bool] | None = None) -> CheckpointMetadata:
    """``ended``: whether each source was exhausted."""
    return CheckpointMetadata(
        pipeline="auctions",
        life="life-1",
        checkpoint_id=CheckpointId(7),
        parent=None,
        generation=Generation(1),
        type=CheckpointType.CHECKPOINT,
        triggered_at_ms=0,
        drains=False,
        sources=tuple(
            SourceCut(uid=uid, position=(), exhausted=exhausted)
            for uid, exhausted in (ended or {"s": True}).items()
        ),
        stages=stages,
        committables=(),
    )


BOTH = (a_stage("a"), a_stage("b"))
REFUSED: dict[str, tuple[CheckpointMetadata, Chain, str]] = {
    "a new stage between a source and its stage": (
        a_snapshot(*BOTH), {"new": ["s"], "a": ["new"], "b": ["a"]}, "a<stage new is new"
    ),
    "a new stage between two": (
        a_snapshot(*BOTH), {"a": ["s"], "new": ["a"], "b": ["new"]}, "b<stage new is new"
    ),
    "new stages in a row": (
        a_snapshot(*BOTH), {"a": ["s"], "m": ["a"], "n": ["m"], "b": ["n"]}, "b<stage n is new"
    ),
    "a new source beside the old one": (
        a_snapshot(*BOTH), {"a": ["s", "t"], "b": ["a"]}, "a<source t is new"
    ),
    "a new source alone": (a_snapshot(*BOTH), {"a": ["t"], "b": ["a"]}, "a<source t is new"),
    "a stage that still runs": (
        a_snapshot(
            a_stage("a"),
            a_stage("b", marked=True),
            a_stage("c", ended=False),
            ended={"s": True, "u": False},
        ),
        {"a": ["s"], "c": ["u"], "b": ["a", "c"]},
        "b<stage c has not",
    ),
    "a source that still gives records": (
        a_snapshot(a_stage("a", marked=True), ended={"s": True, "u": False}),
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
        f"rows would come behind the end of all input. Let nothing new stand before {stage!r}, or "
        f"give {stage!r} a new uid and allow non-restored state, so that it begins anew"
    )


TAKEN: dict[str, tuple[CheckpointMetadata, Chain]] = {
    "the same chain": (a_snapshot(*BOTH), {"a": ["s"], "b": ["a"]}),
    "the same chain, found finished": (
        a_snapshot(a_stage("a", marked=True), a_stage("b", marked=True)), {"a": ["s"], "b": ["a"]}
    ),
    "a new stage behind": (a_snapshot(*BOTH), {"a": ["s"], "b": ["a"], "new": ["b"]}),
    "a new stage before one that still runs": (
        a_snapshot(a_stage("a", ended=False), ended={"s": False}), {"new": ["s"], "a": ["new"]}
    ),
    "a new stage before one that has not consumed all": (
        a_snapshot(a_stage("a"), a_stage("b", flies=True)),
        {"a": ["s"], "new": ["a"], "b": ["new"]},
    ),
    "a drained savepoint, whose sources go on": (
        a_snapshot(*BOTH, ended={"s": False}), {"new": ["s"], "a": ["new"], "b": ["a"]}
    ),
    "event time ended by one input, while the other was idle": (
        a_snapshot(a_stage("a"), ended={"s": True, "idle": False}), {"a": ["s", "idle"]}
    ),
    "a stage that begins anew": (a_snapshot(*BOTH), {"new": ["s"], "a2": ["new"]}),
    "the same input twice": (a_snapshot(a_stage("a")), {"a": ["s", "s"]}),
}  # fmt: skip


@pytest.mark.parametrize("change", TAKEN)
def test_every_other_chain_may_continue(change: str) -> None:
    snapshot, chain = TAKEN[change]

    assert problems_behind_the_end(snapshot, chain) == []
