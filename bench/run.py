"""Sluice and its peers side by side: wall and CPU seconds, bytes, and whether they agree.

    python -m bench.run [--workload a,b] [--engines a,b] [--repetitions N] [--scale 0.01]

The environment's WORKLOAD, ENGINES, REPETITIONS and SCALE are the defaults.  Repetitions are
interleaved: every engine has its turn before any has its second.  Each run is a new process, on
the same files; see ``bench.protocol`` for what it does and ``bench.workloads`` for what is
measured.  Everything goes to ``bench/results/latest.json``; the exit code is 1 when an engine
failed, or did not agree with the others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.engines.registry import ENGINES, engine_of
from bench.inputs import Input, make_input
from bench.protocol import Phase, Report, Request, read_report, write_request
from bench.results import Digest, Row, Sample, digest_of, print_table, row_of, sample_of
from bench.workloads import WORKLOADS, Workload

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".sluice" / "bench"
RESULTS = REPOSITORY / "bench" / "results" / "latest.json"
GROWING = ("sluice", "polars")  # The engines of workloads where only the size of the state grows.
TIMEOUT_S = 3_600  # The slowest peer needs ten minutes for its largest workload on two cores.


class EngineFailed(Exception):
    """The message says where its log is."""


def main() -> int:
    given = _arguments()
    rows: list[Row] = []
    for name in given.workload:
        rows += measure(WORKLOADS[name], given.engines, given.repetitions, given.scale, given.cache)
        write_results(rows, given.scale, given.output)
    print_table(rows)
    print(f"\nwritten to {given.output}")
    return int(any(row.error or row.agrees is False for row in rows))


def measure(
    workload: Workload, engines: list[str], repetitions: int, scale: float, cache: Path
) -> list[Row]:
    """Run every engine *repetitions* times, interleaved."""
    found = make_input(workload, scale, cache)
    work = cache / "work" / workload.name
    shutil.rmtree(work, ignore_errors=True)
    refused = {name: _refusal(workload, name) for name in engines}
    taking_part = [name for name in engines if refused[name] is None]
    samples: dict[str, list[Sample]] = {name: [] for name in taking_part}
    digests: dict[str, Digest] = {}
    errors: dict[str, str] = {}
    for repetition in range(repetitions):
        turn = repetition % max(len(taking_part), 1)  # No engine is always first, and cold.
        for name in taking_part[turn:] + taking_part[:turn]:
            if name in errors:
                continue
            folder = work / name
            shutil.rmtree(folder, ignore_errors=True)
            started = time.monotonic()
            try:
                report = run_engine(workload, name, found, folder)
            except EngineFailed as error:
                errors[name] = str(error)
                print(f"{workload.name} {name}: {error}", flush=True)
                continue
            samples[name].append(sample_of(workload, found, report))
            if report.result is not None:
                digests[name] = digest_of(report.result, workload)
            print(
                f"{workload.name} {name} {repetition + 1}/{repetitions}: "
                f"{time.monotonic() - started:.1f} s, {samples[name][-1].line()}",
                flush=True,
            )
    rows = [
        row_of(
            workload,
            name,
            found,
            samples.get(name, []),
            digests,
            error=errors.get(name, ""),
            refused=refused[name] or "",
        )
        for name in engines
    ]
    if not any(row.error or row.agrees is False for row in rows):
        shutil.rmtree(work, ignore_errors=True)
    return rows


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
        workload=workload.name, engine=name, phase=phase, epochs=epochs, flush=flush, work=str(work)
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


def write_results(rows: list[Row], scale: float, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    document = {"scale": scale, "machine": machine, "rows": [row.document() for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    environment = os.environ

    def names(known: Iterable[str]) -> Callable[[str], list[str]]:
        def parsed(text: str) -> list[str]:
            chosen = [name for name in text.replace(",", " ").split() if name] or list(known)
            for name in chosen:
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(known)}")
            return chosen

        return parsed

    parser.add_argument(
        "--workload", type=names(WORKLOADS), default=environment.get("WORKLOAD", "")
    )
    parser.add_argument("--engines", type=names(ENGINES), default=environment.get("ENGINES", ""))
    parser.add_argument("--repetitions", type=int, default=int(environment.get("REPETITIONS") or 3))
    parser.add_argument("--scale", type=float, default=float(environment.get("SCALE") or 1))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.cache = given.cache.resolve()
    return given


if __name__ == "__main__":
    sys.exit(main())
