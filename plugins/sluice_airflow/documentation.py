"""The page that Airflow shows for a pipeline's DAG, drawn from its declaration."""

from __future__ import annotations

from datetime import timedelta

from sluice.pipeline import Pipeline


def describe(pipeline: Pipeline) -> str:
    """Markdown: the drawing on the whiteboard, how checkpoints are taken, the parameters."""
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
    interval = checkpointing.interval
    when = f"every **{_words(interval)}**" if interval is not None else "**by hand** only"
    return (
        f"A checkpoint {when}, given up after "
        f"{_words(checkpointing.timeout)}; the newest {checkpointing.num_retained} are retained. "
        f"After {checkpointing.tolerable_failed_checkpoints} tolerated failures, or at once when a "
        f"stage fails, `{pipeline.uid}__restore` continues from the latest completed one."
    )


def _words(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
