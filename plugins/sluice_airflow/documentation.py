"""The pages that Airflow shows for a pipeline's DAGs and tasks, drawn from its declaration."""

from __future__ import annotations

from datetime import timedelta

from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import Continuous, Cron, OnAsset

SAVEPOINT = """\
A checkpoint that a person asks for and owns: no retention deletes it. *Then stop the job* makes it
the last one, for an upgrade (suspend) or for good (drain); `restore` goes on from it.
"""

TASKS = {
    "trigger": "Asks the coordinator. Its log says why a run is skipped, or what it waits for.",
    "finalize": "Collects the acks and writes `_metadata`: from here on the checkpoint is true.",
    "commit": "The sinks publish what they staged, and what the checkpoint subsumed is deleted.",
    "export": "Copies the savepoint to the root that the form names; skipped if it names none.",
    "abort": "Ran because a task failed: the checkpoint ended for the one reason in its log.",
    "restart": "Starts the restore DAG, if the restart strategy says so.",
    "cancel_stages": "Frees Spark's cores of the aborted checkpoint's stages.",
    "verify": "Changes nothing: names what would be restored, or everything that is missing.",
    "restore": "Fences the older coordinators, replays an unfinished commit, and resumes.",
    "cancel": "Ends the job.",
}
AWAIT_ACKS = (
    "Waits in the triggerer, without a worker slot, until every subtask acknowledged in the bucket."
)


def describe(pipeline: Pipeline) -> str:
    """The page of a pipeline, in Markdown: its graph, its checkpoints and its parameters."""
    lines = [
        f"## {pipeline.uid}",
        pipeline.description,
        "```text",
        *draw(pipeline),
        "```",
        _promise(pipeline),
    ]
    if pipeline.params:
        lines += ["", "| parameter | default | |", "|---|---|---|"]
        lines += [
            f"| `{param.name}` | {param.default or ('required' if param.required else '')} | "
            f"{param.help} |"
            for param in pipeline.params
        ]
    return "\n".join(lines)


def restore(pipeline: Pipeline) -> str:
    return (
        "Puts state, source offsets and output tables back to one moment, and resumes. Works on a "
        "job of any status; one that was never submitted is submitted first. A failure starts it "
        f"by itself. `{pipeline.uid}` goes on with its next run: is it unpaused?"
    )


def cancel(pipeline: Pipeline) -> str:
    retention = pipeline.checkpointing.externalized_checkpoint_retention.value
    return (
        "Ends the job: what is pending is aborted. Retained checkpoints stay or go by its "
        f"retention, `{retention}`; savepoints stay. `{pipeline.uid}__restore` brings it back."
    )


def stage(pipeline: Pipeline, node: StageNode) -> str:
    reads = ", ".join(node.producers)
    sinks = ", ".join(sink.uid for sink in pipeline.sinks_of(node.uid))
    return (
        f"One Spark job: `{node.uid}` reads {reads} and updates its state as "
        f"{pipeline.parallelism_of(node.uid)} subtasks"
        + (f", and stages rows for {sinks}" if sinks else "")
        + ". Each subtask acknowledges in the bucket; the exit of this task does not count."
    )


def draw(pipeline: Pipeline) -> list[str]:
    """One line per source, stage and sink, indented under what it reads."""
    lines: list[str] = []

    def consumers(producer: str, depth: int) -> None:
        pad = "   " * depth + "└─ "
        for stage in pipeline.stages.values():
            if producer in stage.producers:
                kind = type(stage.operation).__name__
                by = f" by {', '.join(stage.keys)}" if stage.keys else ""
                lines.append(f"{pad}{stage.uid}  {kind}{by} x{pipeline.parallelism_of(stage.uid)}")
                consumers(stage.uid, depth + 1)
        lines.extend(
            f"{pad}{sink.uid}  sink, {type(sink.spec).__name__}"
            for sink in pipeline.sinks_of(producer)
        )

    for source in pipeline.sources.values():
        table = " (table)" if source.is_table else ""
        lines.append(f"{source.uid}  source, {type(source.spec).__name__}{table}")
        consumers(source.uid, 0)
    return lines


def _promise(pipeline: Pipeline) -> str:
    checkpointing = pipeline.checkpointing
    when = _when(pipeline)
    kept = checkpointing.retain_for
    age = f", and those of the last {_words(kept)}" if kept else ""
    return (
        f"A checkpoint {when}, given up after "
        f"{_words(checkpointing.timeout)}; the newest {checkpointing.num_retained}{age} are "
        "retained. "
        f"After {checkpointing.tolerable_failed_checkpoints} tolerated failures, or at once when a "
        f"stage fails, `{pipeline.uid}__restore` continues from the latest completed one."
    )


def _when(pipeline: Pipeline) -> str:
    match pipeline.checkpointing.schedule:
        case Continuous():
            return "**after the other**, as long as there are new records"
        case Cron(expression, timezone):
            return f"by the clock, **{expression}** ({timezone})"
        case OnAsset(uri=uri):
            return f"at each event of **{uri}**"
        case _:
            interval = pipeline.checkpointing.interval
            if interval is None:
                return "**by hand** only"
            return f"every **{_words(interval)}**, if there is anything new"


def _words(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
