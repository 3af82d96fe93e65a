"""Flink from its Python package, with its state on the heap or in RocksDB (incremental).

A keyed workload is a DataStream job, which is the faster of Flink's interfaces; Nexmark's queries
are SQL.  The package has no Parquet reader, so the rows are handed over in files that are cheaper
to read, made before anything is measured.  One job runs on: an epoch's files appear at once, and
the epoch is over when all rows were read and a checkpoint after them is complete, on the local
disk.  Of the keyed results nothing is written while it is measured.

The few classes in ``flink_job`` are compiled by Janino, which Flink has with it; so a Java runtime
is enough.  ``make bench-flink`` installs the package into a virtual environment of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import IO, Self

from bench.engines.flink_input import (
    QUERIES,
    fields_of,
    read_result,
    write_questions,
    write_rows,
)
from bench.protocol import Meter, Report, Request
from bench.workloads import Workload

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / ".sluice" / "flink-venv"
SOURCES = Path(__file__).resolve().parent / "flink_job"
HEAP = "6g"  # 5 M keys on the heap take 1.5 GB, and as much again while they are copied.
MANAGED_MEMORY = "1536m"  # For RocksDB, shared by both slots.
LAST_CHECKPOINT = "last_checkpoint.txt"


def refusal(workload: Workload) -> str | None:  # noqa: ARG001 - it runs all of them
    return None if _home() else f"Flink is not installed in {VENV.name}; run make bench-flink"


def run(request: Request) -> Report:
    work = Path(request.work)
    for name in ("input", "empty", "output", "checkpoints", "savepoints", "tmp"):
        (work / name).mkdir(exist_ok=True)
    meter = Meter()
    with Driver(request) as driver:
        if request.phase == "restore":
            _restored(request, driver, meter)
            return Report(epochs=tuple(meter.records))
        driver.ask("submit")
        read = 0
        for number, folder in enumerate(request.epochs):
            staged = work / "input" / f".{number:05}"
            rows = write_rows(folder, staged, request.spec)
            read += rows
            with meter.epoch(rows):
                staged.rename(work / "input" / f"{number:05}")
                driver.ask(f"await {read}")
                size, path = driver.ask("checkpoint").split()
                meter.uploaded(int(size))
            (work / LAST_CHECKPOINT).write_text(path)
        if request.phase == "prepare":
            driver.ask("cancel")
            return Report(epochs=tuple(meter.records))
        if request.spec.kind == "keyed":
            staged = work / "input" / ".99999"
            read += write_questions(request.epochs[0], staged, request.spec)
            staged.rename(work / "input" / "99999")
            driver.ask(f"await {read}")
        driver.ask(f"drain file://{work}/savepoints")
    result = work / "result.parquet"
    read_result(work / "output", request.spec).write_parquet(result)
    return Report(epochs=tuple(meter.records), result=str(result))


def _restored(request: Request, driver: Driver, meter: Meter) -> None:
    """Measure a restore: from a ready cluster, which has run the job on no rows, to a result."""
    work = Path(request.work)
    [folder] = request.epochs
    staged = work / "input" / ".99999"
    rows = write_rows(folder, staged, request.spec)
    staged.rename(work / "input" / "99999")
    checkpoint = (work / LAST_CHECKPOINT).read_text()
    driver.ask("rehearse")
    with meter.epoch(rows):
        driver.ask(f"submit {checkpoint}")
        driver.ask("output")
    driver.ask("cancel")


class Driver:
    """The process of the cluster, and the conversation with it; see Driver.java."""

    def __init__(self, request: Request) -> None:
        home = _home()
        assert home is not None
        work = Path(request.work)
        classes = _compiled(home, VENV / "sluicebench")
        arguments = _arguments(request, work)
        command = ["java", f"-Xmx{HEAP}", *_java_options(home), "-Dlog4j2.level=ERROR"]
        command += ["-cp", f"{classes}:{home}/lib/*", "sluicebench.Driver"]
        self._process = subprocess.Popen(
            [*command, *(f"{name}={value}" for name, value in arguments.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pipe: IO[str] | None = self._process.stdin
        assert pipe is not None
        pipe.close()  # It ends with its input.
        self._process.wait(60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
            print(line, end="")
        raise RuntimeError(f"Flink's process ended with exit code {self._process.wait()}")


def _arguments(request: Request, work: Path) -> dict[str, str]:
    query = ""
    if request.spec.kind == "nexmark":
        (work / "query.sql").write_text(QUERIES[request.spec.query])
        query = str(work / "query.sql")
    arguments = {
        "input": f"file://{work}/input",
        "empty": f"file://{work}/empty",
        "output": str(work / "output"),
        "fields": ",".join(fields_of(request.spec)),
        "key.longs": str(len(fields_of(request.spec)) - 2),  # Without value and ts.
        "query": query,
        "parallelism": str(request.threads),
        "execution.checkpointing.dir": f"file://{work}/checkpoints",
        # Checkpoints are asked for; without an interval they are switched off.
        "execution.checkpointing.interval": "365 d",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "io.tmp.dirs": str(work / "tmp"),
        "state.backend.type": request.engine.removeprefix("flink_"),
        "table.local-time-zone": "UTC",
        "taskmanager.memory.managed.size": MANAGED_MEMORY,
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
    }
    if request.engine == "flink_rocksdb":
        arguments["execution.checkpointing.incremental"] = "true"
    return arguments


def _home() -> Path | None:
    return next(VENV.glob("lib/python3.*/site-packages/pyflink"), None)


def _java_options(home: Path) -> list[str]:
    """The Java options that Flink's own scripts pass to its processes."""
    return re.findall(r"--add-(?:opens|exports)=\S+", (home / "conf" / "config.yaml").read_text())


def _compiled(home: Path, to: Path) -> Path:
    sources = sorted(SOURCES.glob("*.java"))
    newest = max(source.stat().st_mtime for source in sources)
    done = to / "done"
    if done.exists() and done.stat().st_mtime > newest:
        return to
    to.mkdir(exist_ok=True)
    jars = os.pathsep.join(str(jar) for jar in sorted((home / "lib").glob("*.jar")))
    command = ["java", "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8", "-cp", jars]
    command += ["org.codehaus.commons.compiler.samples.CompilerDemo", "-rebuild", "-d", str(to)]
    command += ["-classpath", jars, *map(str, sources)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not list(to.glob("**/*.class")):
        raise RuntimeError(f"the Flink job does not compile: {answer.stdout}{answer.stderr}")
    done.touch()
    return to
