"""A job that runs for a long time while its processes are killed, and what it leaves behind.

``sluice run`` follows a folder that grows, and is started again whenever it ends.  Meanwhile
something is killed or frozen, savepoints are taken, restored and disposed of, tables vacuumed and
garbage collected.  At the end the tables hold what DuckDB makes of the whole input, and nothing
has grown that has an owner.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import duckdb
import psutil  # type: ignore[import-untyped]

from sluice.core.ids import CheckpointId
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table
from sluice.local.driver import KEPT_SHORT_EVERY
from sluice.store.checkpoints import StatisticsStore
from sluice.store.journal import KEPT_ENTRIES
from sluice.store.open import StoreLocation

SLUICE = str(Path(sys.executable).with_name("sluice"))
ROWS_OF_A_FILE = 400
GROUPS = 7
PIPELINE = '''"""What the soak runs: a keyed stage, windows, and a stage behind another one."""

from datetime import timedelta

from sluice import Checkpointing, Pipeline, Tumbling
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files

pipeline = Pipeline(
    "soak",
    checkpointing=Checkpointing(max_records_per_epoch=2_000, tolerable_failed_checkpoints=3),
    parallelism=1,
)
clicks = pipeline.source(
    "clicks",
    Files(
        "input",
        format="json",
        schema="id bigint, user string, team bigint, amount bigint, moment timestamp",
        bounded=False,
    ),
    event_time="moment",
    out_of_orderness=timedelta(seconds=30),
)
users = clicks.key_by("user").aggregate(
    "users", clicks=agg.count(), amount=agg.sum("amount"), team=agg.max("team")
)
users.sink("users_table", FilesTable(upsert_key=("user",)))
teams = users.key_by("team").aggregate("teams", users=agg.count(), amount=agg.sum("amount"))
teams.sink("teams_table", FilesTable(upsert_key=("team",)))
minutes = clicks.key_by("team").window(
    "minutes", Tumbling(timedelta(minutes=1)), clicks=agg.count(), amount=agg.sum("amount")
)
minutes.sink("minutes_table", FilesTable())
'''
INPUT = (
    "read_json('{}/input/*.json', format='newline_delimited', columns={{id: 'BIGINT', "
    "user: 'VARCHAR', team: 'BIGINT', amount: 'BIGINT', moment: 'TIMESTAMP'}})"
)
EXPECTED = {
    "users_table": 'SELECT "user", count(*), sum(amount), max(team) FROM {} GROUP BY 1 ORDER BY 1',
    "teams_table": "SELECT team, count(*), sum(amount) FROM (SELECT max(team) AS team, "
    'sum(amount) AS amount FROM {} GROUP BY "user") GROUP BY 1 ORDER BY 1',
    "minutes_table": "SELECT team, date_trunc('minute', moment) AS begins, count(*), sum(amount) "
    "FROM {} GROUP BY 1, 2 ORDER BY 1, 2",
}
SHOWN = {
    "users_table": 'SELECT "user", clicks, amount, team FROM t ORDER BY 1',
    "teams_table": "SELECT team, users, amount FROM t ORDER BY 1",
    "minutes_table": "SELECT team, window_start::TIMESTAMP, clicks, amount FROM t ORDER BY 1, 2",
}
KILLS = ("all", "runner", "java", "worker", "freeze")
COMPLETED = re.compile(r"^checkpoint (\d+) completed: ([\d,]+) records, .*?, ([\d.]+) (m?s)\b")
# What no truncation shortens, and what comes until a run looks again.
JOURNAL_ENTRIES = 2 * KEPT_ENTRIES + 10 * KEPT_SHORT_EVERY
LEFT_FOLDERS = 12  # Of temporary ones, whatever was killed.


@dataclass(frozen=True, slots=True)
class Sample:
    """At a second of the soak: of the running process tree memory and descriptors, of the rest
    what lies there.
    """

    at_s: float
    memory_mb: int
    descriptors: int
    journal: int
    files: int
    megabytes: float
    temporary: int


@dataclass(slots=True)
class Soaked:
    """``epochs`` are the seconds of the soak at which a checkpoint completed, with its length;
    ``requests`` those at which it did, with the requests of its subtasks to stores.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    epochs: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    requests: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    events: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    problems: list[str] = field(default_factory=list[str])
    rows: dict[str, int] = field(default_factory=dict[str, int])


class Soak:
    """*folder* is a project of its own.  *every_s* is the time between two kills, *rests_s* that
    between two files of input; a run that nothing kills has as many *epochs*.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        every_s: float,
        rests_s: float,
        epochs: int,
        seed: int,
    ) -> None:
        self.folder, self.seconds, self.epochs = folder, seconds, epochs
        self.every_s, self.rests_s = every_s, rests_s
        self.found, self._random = Soaked(), Random(seed)
        self._began, self._is_over, self._files = time.monotonic(), threading.Event(), 0
        self._runner: subprocess.Popen[str] | None = None
        self._alone = threading.Lock()  # Held by who runs the job.
        self._savepoint = ""
        for name in ("pipelines", "input", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "pipelines" / "soak.py").write_text(PIPELINE)
        self._env = os.environ | {
            "SLUICE_PIPELINES": str(folder / "pipelines"),
            "TMPDIR": str(folder / "tmp"),
            "SLUICE_CACHE_DIR": str(folder / "cache"),
            "COLUMNS": "200",
        }

    def play(self) -> Soaked:
        """Until the time is over; then everything is read, windows fire, and tables are judged."""
        turns = (self._writes, self._runs, self._kills, self._keeps, self._samples)
        threads = [threading.Thread(target=self._guarded, args=(turn,)) for turn in turns]
        for thread in threads:
            thread.start()
        self._is_over.wait(self.seconds)
        self._is_over.set()
        for thread in threads:
            thread.join()
        self._sluice("run", "soak", "--drain", timeout_s=1_800)
        self._judges()
        return self.found

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception as error:  # noqa: BLE001 - it is what the soak is for
            self.found.problems.append(f"{turn.__name__}: {error!r}")
            self._is_over.set()

    def _root(self) -> Path:
        return self.folder / ".sluice" / "jobs"

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    def _says(self, what: str) -> None:
        self.found.events.append((self._now_s(), what))

    def _sluice(self, *words: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [SLUICE, *words],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        what = " ".join(words)
        if done.returncode:  # Nothing strikes it.
            self.found.problems.append(f"{what}: {done.stderr.strip()[-500:]}")
        self._says(f"{what}: exit code {done.returncode}")
        return done

    def _writes(self) -> None:
        """Each file has five seconds of event time, out of order by less than the bound."""
        while not self._is_over.wait(self.rests_s):
            self._writes_one()

    def _writes_one(self) -> None:
        number, self._files = self._files, self._files + 1
        random, lines = Random(number), []
        for row in range(ROWS_OF_A_FILE):
            click = number * ROWS_OF_A_FILE + row
            user = int((click // 4 + 1) * random.random() ** 3)
            at = 1_767_225_600 + number * 5 + row / 80 - random.random() * 20
            second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
            lines.append(
                json.dumps(
                    {
                        "id": click,
                        "user": f"u{user}",
                        "team": user % GROUPS,
                        "amount": random.randrange(-1000, 1000),
                        "moment": f"{second}.{int(at % 1 * 1e6):06d}Z",
                    }
                )
            )
        unfinished = self.folder / "input" / f".{number}"
        unfinished.write_text("\n".join(lines) + "\n")
        unfinished.rename(self.folder / "input" / f"f{number:08d}.json")

    def _runs(self) -> None:
        while not self._is_over.wait(0.2):
            with self._alone:
                begun = subprocess.Popen(
                    [SLUICE, "run", "soak", "--epochs", str(self.epochs)],
                    cwd=self.folder,
                    env=self._env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
                with begun as self._runner:
                    self._follows(begun)
                self._runner = None

    def _follows(self, begun: subprocess.Popen[str]) -> None:
        assert begun.stdout is not None
        line = ""
        for line in begun.stdout:
            match = COMPLETED.match(line)
            if match:
                took_s = float(match[3]) / (1000 if match[4] == "ms" else 1)
                self.found.epochs.append((self._now_s(), took_s))
                self._counts_requests(CheckpointId(int(match[1])))
        self._says(f"run: exit code {begun.wait()}, {line.strip()}")

    def _counts_requests(self, checkpoint_id: CheckpointId) -> None:
        job = self._job()
        measured = StatisticsStore(job.store, job.paths).read(checkpoint_id)
        if measured is not None:
            asked = [stage.requests.total for stage in measured.stages if stage.requests]
            self.found.requests.append((self._now_s(), sum(asked)))

    def _job(self) -> Job:
        declared: dict[str, Any] = {}
        exec(PIPELINE, declared)  # noqa: S102 - it is the text above
        return open_job(declared["pipeline"], StoreLocation(root=f"file://{self._root()}"))

    def _kills(self) -> None:
        while not self._is_over.wait(self.every_s * self._random.uniform(0.7, 1.3)):
            what, tree = self._random.choice(KILLS), self._tree()
            if not tree:
                continue
            struck = {
                "all": tree,
                "runner": tree[:1],
                "freeze": tree[:1],
                "java": [one for one in tree if _name(one) == "java"],
                "worker": [one for one in tree[1:] if _name(one).startswith("python")][-1:],
            }[what]
            self._says(f"kill {what}")
            _send(struck, signal.SIGSTOP if what == "freeze" else signal.SIGKILL)
            if what == "freeze":
                self._is_over.wait(self._random.uniform(5, 15))
                _send(struck, signal.SIGCONT)

    def _keeps(self) -> None:
        """What a person, or a DAG, does now and then."""
        turn = 0
        while not self._is_over.wait(self.every_s * 2):
            turn += 1
            self._sluice("gc", "soak")
            if turn % 2 == 0:
                for sink in EXPECTED:
                    self._sluice("tables", "vacuum", "soak", sink, "--keep-versions", "20")
                continue
            with self._alone:
                taken = f"s{turn}"
                self._sluice("run", "soak", "--epochs", "1", "--savepoint", taken)
                self._sluice("restore", "soak", "--savepoint", taken, "--roll-back-tables")
                if self._savepoint:
                    self._sluice("dispose", "soak", self._savepoint)
                self._savepoint = taken

    def _samples(self) -> None:
        while not self._is_over.wait(max(1.0, self.seconds / 400)):
            self.found.samples.append(self._sample())

    def _sample(self) -> Sample:
        memory, descriptors = 0, 0
        for one in self._tree():
            with suppress(psutil.Error):
                memory += one.memory_info().rss
                descriptors += one.num_fds()
        sizes = [*_sizes(self._root())]
        return Sample(
            at_s=self._now_s(),
            memory_mb=memory >> 20,
            descriptors=descriptors,
            journal=sum(1 for _ in self._root().glob("soak/*/journal/*")),
            files=len(sizes),
            megabytes=sum(sizes) / 1e6,
            temporary=len([*(self.folder / "tmp").iterdir()]),
        )

    def _tree(self) -> list[psutil.Process]:
        runner = self._runner
        if runner is None:
            return []
        with suppress(psutil.Error):
            first = psutil.Process(runner.pid)
            return [first, *first.children(recursive=True)]
        return []

    def _judges(self) -> None:
        last, problems = self._sample(), self.found.problems
        job = self._job()
        of_input = INPUT.format(self.folder)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for sink, expected in EXPECTED.items():
                connection.register("t", open_result_table(job, {}, sink).read())
                rows = connection.execute(SHOWN[sink]).fetchall()
                if rows != connection.execute(expected.format(of_input)).fetchall():
                    problems.append(f"{sink} has other rows than the input makes")
                self.found.rows[sink] = len(rows)
        if last.journal > JOURNAL_ENTRIES:
            problems.append(f"the journal has {last.journal} entries, more than {JOURNAL_ENTRIES}")
        requests = [asked for _, asked in self.found.requests]
        if grows(requests):
            problems.append(f"requests of an epoch have grown: {requests}")
        if last.temporary > LEFT_FOLDERS:
            problems.append(f"{last.temporary} temporary folders are left")
        self._sluice("gc", "soak", "--grace", "0s")
        report = json.loads(self._sluice("orphans", "soak", "--grace", "0s", "--json").stdout)
        if report["total_files"] or report["unknown"]:
            problems.append(f"garbage is left, or nameless: {report}")


def grows(requests: Sequence[int]) -> bool:
    """Whether an epoch of the last third asks half as much again as one of the second; in the first
    third runs of state come to their number.  Fewer than 60 epochs say nothing.
    """
    third = len(requests) // 3
    if third < 20:
        return False
    return median(requests[-third:]) > 1.5 * median(requests[third : 2 * third])


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return ""


def _send(processes: Iterable[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(sent)


def _sizes(folder: Path) -> Iterable[int]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            yield path.stat().st_size
