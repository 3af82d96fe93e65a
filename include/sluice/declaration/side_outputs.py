"""Side outputs of stages: rows that are kept apart, each kind published as a table of its own."""

from __future__ import annotations

from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline

MALFORMED = "malformed"  # Rows that could not be read, with where they came from.
NO_EVENT_TIME = "no_event_time"  # Rows that have none, where a stage goes by it.
LATE = "late"  # Rows behind the watermark.
LATE_RIGHT = "late_right"  # The same of a join's second input.


def side_output(stage: str, name: str) -> str:
    """The uid under which a stage's side output is published."""
    return f"{stage}.{name}"


def side_outputs(pipeline: Pipeline) -> tuple[str, ...]:
    """The uids of all side outputs that the stages of *pipeline* may have."""
    return tuple(
        side_output(stage.uid, name)
        for stage in pipeline.stages.values()
        for name in (
            MALFORMED,
            *([NO_EVENT_TIME] if stage.goes_by_event_time else []),
            LATE,
            *([LATE_RIGHT] if _is_join(stage) else []),
        )
    )


def _is_join(stage: StageNode) -> bool:
    return stage.is_stateful and len(stage.inputs) > 1
