"""From reports to rows: minimum and median over repetitions, agreement, and the table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.engines.registry import ENGINES
from bench.inputs import Input
from bench.protocol import EpochRecord, Report
from bench.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A result as a set: the number of rows, and the sum of their hashes."""

    rows: int
    hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One repetition, for *events* events: the mean of its epochs, or their sum."""

    wall_s: float
    cpu_s: float
    bytes_uploaded: int | None
    epochs: tuple[EpochRecord, ...]
    notes: dict[str, str]

    def line(self) -> str:
        return f"{self.wall_s:.2f} s wall, {self.cpu_s:.2f} s CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table; ``agrees`` is None if no other engine has a result."""

    workload: str
    engine: str
    events: int
    bytes_changed: int | None
    samples: tuple[Sample, ...]
    agrees: bool | None
    result_rows: int | None
    error: str
    refused: str

    def wall_s(self) -> tuple[float, float] | None:
        return _minimum_and_median([sample.wall_s for sample in self.samples])

    def cpu_s(self) -> tuple[float, float] | None:
        return _minimum_and_median([sample.cpu_s for sample in self.samples])

    def bytes_uploaded(self) -> int | None:
        known = [one.bytes_uploaded for one in self.samples if one.bytes_uploaded is not None]
        return round(statistics.median(known)) if known else None

    def document(self) -> dict[str, Any]:
        def both(values: tuple[float, float] | None) -> dict[str, float] | None:
            return None if values is None else {"min": values[0], "median": values[1]}

        return {
            "workload": self.workload,
            "engine": self.engine,
            "events": self.events,
            "wall_s": both(self.wall_s()),
            "cpu_s": both(self.cpu_s()),
            "bytes_uploaded": self.bytes_uploaded(),
            "bytes_changed": self.bytes_changed,
            "repetitions": len(self.samples),
            "agrees": self.agrees,
            "result_rows": self.result_rows,
            "error": self.error,
            "refused": self.refused,
            "samples": [asdict(sample) for sample in self.samples],
        }


def unit_of(workload: Workload, found: Input) -> int:
    """The number of events of a figure, at the scale of *found*."""
    return found.epochs[-1].rows * workload.events // workload.events_per_epoch


def sample_of(workload: Workload, found: Input, report: Report) -> Sample:
    skipped = 0 if workload.kind == "restore" else workload.warm_up + workload.has_seed
    measured = report.epochs[skipped:]
    assert measured, f"{len(report.epochs)} epochs, of which {skipped} are not measured"
    share = unit_of(workload, found) / sum(epoch.rows_in for epoch in measured)
    uploaded = [one.bytes_uploaded for one in measured if one.bytes_uploaded is not None]
    return Sample(
        wall_s=share * sum(epoch.wall_s for epoch in measured),
        cpu_s=share * sum(epoch.cpu_s for epoch in measured),
        bytes_uploaded=round(share * sum(uploaded)) if len(uploaded) == len(measured) else None,
        epochs=report.epochs,
        notes=report.notes,
    )


def row_of(
    workload: Workload,
    engine: str,
    found: Input,
    samples: Sequence[Sample],
    digests: Mapping[str, Digest],
    *,
    error: str,
    refused: str,
) -> Row:
    measured = found.epochs[-workload.measured :]
    changed = [epoch.bytes_changed for epoch in measured if epoch.bytes_changed is not None]
    share = unit_of(workload, found) / sum(epoch.rows for epoch in measured)
    digest = digests.get(engine)
    return Row(
        workload=workload.name,
        engine=engine,
        events=unit_of(workload, found),
        bytes_changed=round(share * sum(changed)) if changed else None,
        samples=tuple(samples),
        agrees=_agrees(digest, digests),
        result_rows=None if digest is None else digest.rows,
        error=error,
        refused=refused,
    )


def digest_of(result: str, workload: Workload) -> Digest:
    """The digest of the workload's columns as 64-bit integers, in any order of rows."""
    from pathlib import Path

    import polars as pl

    path = Path(result)
    files = [path] if path.is_file() else sorted(path.glob("**/*.parquet"))
    table = pl.read_parquet(files).select(pl.col(workload.result).cast(pl.Int64))
    hashes = table.hash_rows(seed=0).to_numpy()
    return Digest(rows=table.height, hash=int(hashes.sum()))  # It wraps around.


def print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="minimum / median over repetitions; ratios to the best exactly-once peer")
    for heading in ("workload", "engine"):
        table.add_column(heading, no_wrap=True)
    headings = ("wall s", "CPU s", "events/s", "events/CPU s", "MB up", "MB changed", "agrees")
    for heading in (*headings, "wall ratio", "CPU ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        wall, cpu = row.wall_s(), row.cpu_s()
        if wall is None or cpu is None:
            table.add_row(row.workload, row.engine, "failed" if row.error else "")
            continue
        peers = [one for one in rows if one.workload == row.workload and one.samples]
        peers = [one for one in peers if ENGINES[one.engine].role == "peer"]
        table.add_row(
            row.workload,
            row.engine,
            f"{wall[0]:.2f} / {wall[1]:.2f}",
            f"{cpu[0]:.2f} / {cpu[1]:.2f}",
            f"{row.events / wall[1]:,.0f}",
            f"{row.events / max(cpu[1], 1e-9):,.0f}",
            _megabytes(row.bytes_uploaded()),
            _megabytes(row.bytes_changed),
            {None: "", True: "yes", False: "[red]NO"}[row.agrees],
            _ratio(wall[1], [peer.wall_s() for peer in peers]),
            _ratio(cpu[1], [peer.cpu_s() for peer in peers]),
        )
    console = Console(width=160)
    console.print(table)
    reasons = dict.fromkeys(
        (row.engine, row.workload if row.error or row.workload in row.refused else "", why)
        for row in rows
        if (why := row.error or row.refused)
    )
    for engine, workload, why in reasons:
        console.print(f"{engine} {workload}: {why}", markup=False)


def _agrees(digest: Digest | None, digests: Mapping[str, Digest]) -> bool | None:
    """Whether the result is that of most engines; two that differ are both wrong."""
    if digest is None or len(digests) < 2:
        return None
    (common, votes), *others = Counter(digests.values()).most_common()
    return digest == common and (not others or others[0][1] < votes)


def _minimum_and_median(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), statistics.median(values)) if values else None


def _megabytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:.1f}"


def _ratio(own: float, of_peers: Sequence[tuple[float, float] | None]) -> str:
    medians = [both[1] for both in of_peers if both is not None]
    return f"{own / max(min(medians), 1e-9):.2f}" if medians else ""
