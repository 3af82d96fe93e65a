"""From reports to rows: minimum and median over repetitions, agreement, and disturbance."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.disturbance import is_disturbed, other_share
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
    """One repetition, for *events* events: the mean of its epochs, or their sum.

    ``other_share`` is the part of all processors' time that other processes had in the measured
    epochs; ``repeated`` that it is the quieter one of two.
    """

    wall_s: float
    cpu_s: float
    bytes_uploaded: int | None
    epochs: tuple[EpochRecord, ...]
    notes: dict[str, str]
    worker_peak_bytes: int | None = None
    other_share: float = 0.0
    repeated: bool = False

    @property
    def is_disturbed(self) -> bool:
        return is_disturbed(self.other_share)

    def line(self) -> str:
        figures = f"{self.wall_s:.2f} s wall, {self.cpu_s:.2f} s CPU"
        if not self.is_disturbed:
            return figures
        return f"{figures}, disturbed: other processes had {self.other_share:.0%} of the machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table; ``agrees`` is None if no other engine has a result.

    Its figures are those of the samples that were not disturbed; only a row that has none of
    these is disturbed itself, and then they are of all.
    """

    workload: str
    engine: str
    events: int
    bytes_changed: int | None
    samples: tuple[Sample, ...]
    agrees: bool | None
    result_rows: int | None
    error: str
    refused: str

    @property
    def is_disturbed(self) -> bool:
        return bool(self.samples) and all(sample.is_disturbed for sample in self.samples)

    @property
    def counted(self) -> tuple[Sample, ...]:
        quiet = tuple(sample for sample in self.samples if not sample.is_disturbed)
        return quiet or self.samples

    def wall_s(self) -> tuple[float, float] | None:
        return _minimum_and_median([sample.wall_s for sample in self.counted])

    def cpu_s(self) -> tuple[float, float] | None:
        return _minimum_and_median([sample.cpu_s for sample in self.counted])

    def other_share(self) -> float:
        """The largest of the samples that the figures are of."""
        return max((sample.other_share for sample in self.counted), default=0.0)

    def bytes_uploaded(self) -> int | None:
        known = [one.bytes_uploaded for one in self.samples if one.bytes_uploaded is not None]
        return round(statistics.median(known)) if known else None

    def worker_peak_bytes(self) -> int | None:
        known = [one.worker_peak_bytes for one in self.samples if one.worker_peak_bytes is not None]
        return max(known, default=None)

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
            "worker_peak_bytes": self.worker_peak_bytes(),
            "repetitions": len(self.samples),
            "counted": len(self.counted),
            "disturbed": self.is_disturbed,
            "other_share": self.other_share(),
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
        worker_peak_bytes=report.worker_peak_bytes,
        other_share=other_share(measured),
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
    changed = [epoch.changed for epoch in measured if epoch.changed is not None]
    share = unit_of(workload, found) / sum(epoch.rows for epoch in measured)
    digest = digests.get(engine)
    return Row(
        workload=workload.name,
        engine=engine,
        events=unit_of(workload, found),
        bytes_changed=round(share * sum(changed) * workload.row_bytes) if changed else None,
        samples=tuple(samples),
        agrees=_agrees(digest, digests),
        result_rows=None if digest is None else digest.rows,
        error=error,
        refused=refused,
    )


def digest_of(result: str, workload: Workload) -> Digest:
    """The digest of the workload's columns, in any order of rows."""
    from pathlib import Path

    import polars as pl

    path = Path(result)
    files = [path] if path.is_file() else sorted(path.glob("**/*.parquet"))
    table = pl.read_parquet(files).select(workload.result)
    # Engines differ in the width of integers; a text key is compared as it is.
    table = table.with_columns(pl.exclude(pl.String).cast(pl.Int64))
    hashes = table.hash_rows(seed=0).to_numpy()
    return Digest(rows=table.height, hash=int(hashes.sum()))  # It wraps around.


def _agrees(digest: Digest | None, digests: Mapping[str, Digest]) -> bool | None:
    """Whether the result is that of most engines; two that differ are both wrong."""
    if digest is None or len(digests) < 2:
        return None
    (common, votes), *others = Counter(digests.values()).most_common()
    return digest == common and (not others or others[0][1] < votes)


def _minimum_and_median(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), statistics.median(values)) if values else None
