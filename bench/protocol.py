"""The protocol between the harness and an engine: a request, and a report.

Every engine runs in a process of its own, ``python -m bench.engine REQUEST REPORT``: it reads the
request as JSON, works through the epochs one by one, each made durable before the next one starts,
and writes the report.  A module of ``bench/engines`` is an engine if it has what ``Engine`` names;
it imports nothing heavy until ``run`` is called.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from bench.cpu import machine_cpu_s, tree_cpu_s
from bench.workloads import Workload

Phase = Literal["run", "prepare", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Folders of Parquet files, one per epoch, in order.

    ``flush`` is one more, behind the last event in event time: its rows have negative ids, close
    every window, and are not part of the result.  ``work`` is empty in the phases ``run`` and
    ``prepare``; ``restore`` finds there what ``prepare`` left, and gets only the epochs after that.
    """

    spec: Workload
    engine: str
    phase: Phase
    epochs: tuple[str, ...]
    flush: str | None
    work: str
    threads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """An epoch; ``bytes_uploaded`` were written for its checkpoint, None without durability.

    ``other_cpu_s`` are the CPU seconds of all other processes of the machine meanwhile.
    """

    epoch: int
    wall_s: float
    cpu_s: float
    rows_in: int
    bytes_uploaded: int | None = None
    other_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``result`` is a Parquet file or a folder of them, with the columns of the workload's
    ``result``, one row for each key or window as of the end; None in ``prepare`` and ``restore``.
    ``worker_peak_bytes`` is the most memory that one of the processes had which hold a subtask's
    rows and state, libraries included; None where an engine has no such processes.
    """

    epochs: tuple[EpochRecord, ...]
    result: str | None = None
    worker_peak_bytes: int | None = None
    notes: dict[str, str] = field(default_factory=dict[str, str])


class Engine(Protocol):
    """A module of ``bench/engines``."""

    def refusal(self, workload: Workload) -> str | None:
        """Why the engine cannot run here, or not this workload; None when it can."""
        ...

    def run(self, request: Request) -> Report: ...


@dataclass(slots=True)
class Meter:
    """A meter of epochs: wall and CPU seconds of this process and its descendants."""

    records: list[EpochRecord] = field(default_factory=list[EpochRecord])
    _bytes: int | None = None

    @contextmanager
    def epoch(self, rows_in: int) -> Iterator[Meter]:
        self._bytes = None
        machine, wall, cpu = machine_cpu_s(), time.perf_counter(), tree_cpu_s()
        yield self
        wall_s, cpu_s = time.perf_counter() - wall, tree_cpu_s() - cpu
        other_cpu_s = machine_cpu_s() - machine - cpu_s
        self.records.append(
            EpochRecord(
                epoch=len(self.records),
                wall_s=wall_s,
                cpu_s=cpu_s,
                rows_in=rows_in,
                bytes_uploaded=self._bytes,
                other_cpu_s=other_cpu_s,
            )
        )

    def uploaded(self, size_bytes: int) -> None:
        """Add written bytes, within ``epoch``, or after it to the last one."""
        self._bytes = size_bytes

    def uploaded_later(self, size_bytes: int) -> None:
        """The same for the last epoch, when to find out would have been measured."""
        last = self.records[-1]
        self.records[-1] = EpochRecord(**(asdict(last) | {"bytes_uploaded": size_bytes}))


def write_request(request: Request, path: Path) -> None:
    path.write_text(json.dumps(asdict(request)))


def read_request(path: Path) -> Request:
    fields = json.loads(path.read_text())
    spec = fields["spec"] | {"result": tuple(fields["spec"]["result"])}
    epochs = tuple(fields["epochs"])
    return Request(**(fields | {"spec": Workload(**spec), "epochs": epochs}))


def write_report(report: Report, path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(report)))
    os.replace(temporary, path)  # noqa: PTH105 - a report is there whole, or not at all


def read_report(path: Path) -> Report:
    fields = json.loads(path.read_text())
    epochs = tuple(EpochRecord(**one) for one in fields["epochs"])
    return Report(**(fields | {"epochs": epochs}))
