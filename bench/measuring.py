"""The samples of a workload: each engine in a new process, in turn, on the same files.

A sample that other processes disturbed is taken once more (``bench.disturbance``).  A restore is
prepared in one process and measured in another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.engines.registry import ENGINES, engine_of
from bench.forms import Form
from bench.inputs import Input, make_input
from bench.protocol import Phase, Report, Request, read_report, write_request
from bench.results import Digest, Row, Sample, digest_of, row_of, sample_of
from bench.workloads import Workload

REPOSITORY = Path(__file__).resolve().parents[1]
GROWING = ("sluice", "polars")  # The engines of workloads where only the size of the state grows.
TIMEOUT_S = 3_600  # The slowest peer needs ten minutes for its largest workload on two cores.


class EngineFailed(Exception):
    """The message says where its log is."""


@dataclass(slots=True)
class Taken:
    """What the engines of a workload have given so far."""

    samples: dict[str, list[Sample]]
    digests: dict[str, Digest] = field(default_factory=dict[str, Digest])
    errors: dict[str, str] = field(default_factory=dict[str, str])


def measure(
    workload: Workload,
    engines: list[str],
    form: Form,
    cache: Path,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Run every engine as often as the form repeats, interleaved, until *is_over*."""
    found = make_input(workload, form.scale, cache)
    work = cache / "work" / workload.name
    shutil.rmtree(work, ignore_errors=True)
    refused = {name: _refusal(workload, name) for name in engines}
    taking_part = [name for name in engines if refused[name] is None]
    taken = Taken({name: [] for name in taking_part})
    for repetition in range(form.repetitions):
        turn = repetition % max(len(taking_part), 1)  # No engine is always first, and cold.
        for name in taking_part[turn:] + taking_part[:turn]:
            if is_over():
                refused[name] = f"{workload.name} was left out: the {form.name} form's time was up"
            elif name not in taken.errors:
                what = f"{workload.name} {name} {repetition + 1}/{form.repetitions}"
                _add_sample(taken, workload, name, found, work / name, what, form)
    rows = [
        row_of(
            workload,
            name,
            found,
            taken.samples.get(name, []),
            taken.digests,
            error=taken.errors.get(name, ""),
            refused=refused[name] or "",
        )
        for name in engines
    ]
    if not any(row.error or row.agrees is False for row in rows):
        shutil.rmtree(work, ignore_errors=True)
    return rows


def _add_sample(
    taken: Taken,
    workload: Workload,
    name: str,
    found: Input,
    folder: Path,
    what: str,
    form: Form,
) -> None:
    def once() -> Sample:
        shutil.rmtree(folder, ignore_errors=True)
        started = time.monotonic()
        report = run_engine(workload, name, found, folder)
        if report.result is not None:
            taken.digests[name] = digest_of(report.result, workload)
        sample = sample_of(workload, found, report)
        print(f"{what}: {time.monotonic() - started:.1f} s, {sample.line()}", flush=True)
        return sample

    try:
        taken.samples[name].append(quieter(once) if form.repeats_disturbed else once())
    except EngineFailed as error:
        taken.errors[name] = str(error)
        print(f"{what}: {error}", flush=True)


def quieter(once: Callable[[], Sample]) -> Sample:
    """A sample; if it was disturbed, the quieter one of two."""
    first = once()
    if not first.is_disturbed:
        return first
    return replace(min(first, once(), key=lambda sample: sample.other_share), repeated=True)


def _refusal(workload: Workload, name: str) -> str | None:
    if workload.is_growth and name not in GROWING:
        return f"{workload.name} is measured for Sluice, and for Polars to check it"
    return engine_of(name).refusal(workload)


def run_engine(workload: Workload, name: str, found: Input, folder: Path) -> Report:
    """Run an engine once; a restore is prepared in one process and measured in another."""
    epochs = tuple(epoch.folder for epoch in found.epochs)
    if workload.kind != "restore":
        return _process(workload, name, "run", epochs, found.flush, folder)
    _process(workload, name, "prepare", epochs[: -workload.measured], None, folder)
    return _process(workload, name, "restore", epochs[-workload.measured :], None, folder)


def _process(
    workload: Workload,
    name: str,
    phase: Phase,
    epochs: tuple[str, ...],
    flush: str | None,
    folder: Path,
) -> Report:
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    request = Request(
        spec=workload, engine=name, phase=phase, epochs=epochs, flush=flush, work=str(work)
    )
    paths = folder / f"{phase}.request.json", folder / f"{phase}.report.json"
    write_request(request, paths[0])
    command = [sys.executable, "-m", "bench.engine", *map(str, paths)]
    path = [str(REPOSITORY), str(REPOSITORY / "include"), os.environ.get("PYTHONPATH", "")]
    environment = (
        os.environ | ENGINES[name].environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    )
    log = folder / f"{phase}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"not done after {TIMEOUT_S} s; see {log}") from None
        finally:
            _stop_group(process)
    if code != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise EngineFailed(f"exit code {code}: {last[0][:300]}; see {log}")
    return read_report(paths[1])


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop the engine's leftover processes, which are in a process group of their own."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
