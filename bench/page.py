"""The figures on the page of benchmarks, from the history: ``python -m bench.page`` writes them.

One table, one machine, one commit: the newest one that was measured in the full form.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.charts import comparable
from bench.history import Record, read_history
from bench.workloads import WORKLOADS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "benchmarks.md"
_FIGURES = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
SHOWN = {
    "sluice": "Sluice",
    "sluice_run": "`sluice run`",
    "flink_hashmap": "Flink, hashmap",
    "spark_rocksdb": "Structured Streaming, RocksDB",
    "polars": "Polars alone",
}
RATIOS = (
    ("flink_hashmap", "sluice", "Flink / Sluice"),
    ("spark_rocksdb", "sluice", "Structured Streaming / Sluice"),
    ("flink_hashmap", "sluice_run", "Flink / `sluice run`"),
    ("sluice", "sluice_run", "Sluice / `sluice run`"),
    ("sluice", "polars", "Sluice / Polars"),
)
# Where Sluice keeps its checkpoints, and where its subtasks run.
PLACES = {
    "sluice": "folder, one machine",
    "sluice_s3": "S3 server, one machine",
    "sluice_cluster": "S3 server, cluster of two workers",
}
_WITHOUT_TASKS = (
    " **A DAG's task was not measured at this commit**: it goes through Spark Connect, which these"
    " figures leave out."
)


def main() -> int:
    PAGE.write_text(with_figures(PAGE.read_text(), read_history()))
    return 0


def with_figures(page: str, history: Sequence[Record]) -> str:
    """The page's text with the newest figures between its two comments."""
    return _FIGURES.sub(lambda _: f"\n{figures(history)}\n", page, count=1)


def figures(history: Sequence[Record]) -> str:
    """A sentence, a table, and one of the places that were measured, in Markdown."""
    measured = [one for one in comparable(history) if one.source == "measured"]
    newest = [one for one in measured if one.commit == measured[-1].commit]
    by_engine = {(one.row, one.engine): one for one in newest}
    engines = [name for name in SHOWN if any(one.engine == name for one in newest)]
    ratios = [one for one in RATIOS if one[0] in engines and one[1] in engines]
    headings = ["workload", *(SHOWN[name] for name in engines)]
    headings += [f"{title}, CPU" for *_, title in ratios]
    headings += [f"MB written, {SHOWN[name]}" for name in engines if name.startswith("flink")]
    headings += [f"MB written, {SHOWN[engines[0]]}", "MB changed", "MB of a worker, at most"]
    lines = [headings, ["---"] * len(headings)]
    for row in (name for name in WORKLOADS if any(one.row == name for one in newest)):
        found = {name: by_engine.get((row, name)) for name in SHOWN}
        cells = [f"`{row}`", *(_seconds(found[name]) for name in engines)]
        cells += [_ratio(found[above], found[below]) for above, below, _ in ratios]
        cells += [_megabytes(found[name]) for name in engines if name.startswith("flink")]
        own = found[engines[0]]
        cells += [_megabytes(own), "" if own is None else _mega(own.bytes_changed)]
        cells.append("" if own is None else _mega(own.worker_peak_bytes))
        lines.append(cells)
    return f"{_origin(newest)}\n\n{_table(lines)}\n{_places(by_engine)}"


def _places(by_engine: Mapping[tuple[str, str], Record]) -> str:
    """The rows that were measured elsewhere than in a folder on one machine."""
    measured = [name for name in PLACES if any(engine == name for _, engine in by_engine)]
    if len(measured) < 2:
        return ""
    first, *others = measured
    headings = ["workload", *(PLACES[name] for name in measured)]
    headings += [f"{PLACES[name]} / {PLACES[first]}, CPU" for name in others]
    lines = [headings, ["---"] * len(headings)]
    for row in WORKLOADS:
        found = [by_engine.get((row, name)) for name in measured]
        if any(found[1:]):
            ratios = [_ratio(one, found[0]) for one in found[1:]]
            lines.append([f"`{row}`", *(_seconds(one) for one in found), *ratios])
    return f"\n{_table(lines)}\n"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _origin(newest: Sequence[Record]) -> str:
    machine, repetitions = newest[0].machine, sorted({one.repetitions for one in newest})
    counted = " or ".join(map(str, repetitions))
    return (
        f"Commit {newest[0].commit}, {newest[0].date}, `make bench REPETITIONS={repetitions[-1]}"
        f" RECORD=1`, {counted} undisturbed repetitions; {machine.processors} processors"
        f" ({machine.model or 'unknown'}), {machine.memory_gb} GB."
        " A cell has the least wall / CPU seconds of an epoch (Nexmark: of five); `*` marks a row"
        " that other processes disturbed, which has no ratio."
        f"{'' if any(one.engine == 'sluice' for one in newest) else _WITHOUT_TASKS}"
    )


def _seconds(record: Record | None) -> str:
    if record is None:
        return ""
    return f"{record.wall_min_s:.2f} / {record.cpu_min_s:.2f}{' *' if record.disturbed else ''}"


def _ratio(above: Record | None, below: Record | None) -> str:
    if above is None or below is None or above.disturbed or below.disturbed:
        return ""
    return f"{above.cpu_min_s / max(below.cpu_min_s, 1e-9):.1f}"


def _megabytes(record: Record | None) -> str:
    return "" if record is None else _mega(record.bytes_written)


def _mega(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:.1f}"


if __name__ == "__main__":
    sys.exit(main())
