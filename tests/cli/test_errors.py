"""A mistake gives one sentence that names the thing and the fix, and exit code 1."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from harness.jobs import trigger_one
from harness.s3_server import free_port
from sluice import aggregates as agg
from sluice.cli.main import app, main
from sluice.core.configuration import JobStatus
from sluice.declaration.pipeline import Pipeline
from sluice.errors import SourceUnreadable
from sluice.job.job import open_job
from sluice.sinks import FilesTable
from sluice.sources import IcebergTable
from sluice.store.open import StoreLocation
from sluice.surface.pipelines import pipeline_line
from tests.cli.conftest import Sluice
from tests.cli.test_run import NoSession
from tests.iceberg_catalog import TABLE, a_table, loaded, properties


def sluice(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from sluice.cli.main import main; main()", *arguments],
        check=False,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> list[str]:
    (tmp_path / "allow.txt").write_text("10.0.0.1\n")
    (tmp_path / "auth.log").write_text("")
    return [
        f"--allowlist={tmp_path / 'allow.txt'}",
        f"--root=file://{tmp_path / 'root'}",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "nothing"], "there is no pipeline 'nothing'; declared are auctions"),
        (["run", "ssh_threats"], "parameter 'allowlist' is not set"),
        (["run", "auctions", "--evnts", "3"], "has no parameter 'evnts'; it has events"),
        (["run", "auctions", "--events", "x"], "parameter 'events' is 'x'; give a whole number"),
        (["run", "auctions", "--events"], "--events lacks a value"),
        (["run", "auctions", "--root", "ftp://x/y"], "s3://my-bucket/checkpoints"),
        (["run", "auctions", "--parallelism", "0"], "parallelism 0"),
        (["run", "auctions", "--max-records-per-epoch", "0"], "max_records_per_epoch is 0"),
        (["run", "auctions", "--output", "result.txt"], "name it .parquet or .json or .csv"),
        (["side-output", "auctions", "nothing"], "bid_statistics.malformed"),
        (["restore", "nothing"], "there is no pipeline 'nothing'; declared are auctions"),
        (["restore", "auctions"], "was never submitted in file://"),
        (["cancel", "auctions"], "start it with 'sluice run auctions'"),
        (["orphans", "auctions", "--root", "s3://b"], "cannot be a bucket's name"),
        (["journal", "nothing"], "there is no pipeline 'nothing'"),
        (["checkpoints", "show", "auctions", "7"], "has no checkpoint 7: it has completed none"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_1(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLUICE_ROOT", f"file://{tmp_path}")

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    error = capfd.readouterr().err
    assert ended.value.code == 1
    assert expected in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_missing_input_is_named(files: list[str], tmp_path: Path, command: str) -> None:
    result = sluice(command, "ssh_threats", f"--input={tmp_path / 'nowhere'}", *files)

    assert result.returncode == 1
    assert f"there is no file and no folder at file://{tmp_path / 'nowhere'}" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreachable_bucket_is_reported_at_once(tmp_path: Path) -> None:
    result = sluice(
        *("run", "auctions", "--root", "s3://bucket/jobs"),
        *("--endpoint-url", f"http://127.0.0.1:{free_port()}"),
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",  # noqa: S106 - the server checks none
    )

    assert result.returncode == 1
    assert "127.0.0.1" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_java_says_what_to_install(tmp_path: Path) -> None:
    result = sluice(
        "run", "auctions", PATH=str(tmp_path), JAVA_HOME="", SLUICE_ROOT=f"file://{tmp_path}"
    )

    assert result.returncode == 1
    assert "openjdk-17" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pipelines"], 0),
        (["--version"], 0),
        (["pipelines", "--help"], 0),
        (["journal", "auctions", "--root", "ftp://x/y"], 1),
        (["journal"], 2),
        (["journal", "auctions", "--lst", "5"], 2),
        (["journal", "auctions", "--last", "many"], 2),
        (["jurnal", "auctions"], 2),
    ],
)
def test_the_exit_code_tells_done_from_refused_from_not_understood(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ROOT", f"file://{tmp_path}")

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == code


def test_the_exit_code_is_that_of_the_process(tmp_path: Path) -> None:
    assert sluice("jurnal", "auctions", SLUICE_ROOT=f"file://{tmp_path}").returncode == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sluice do", ["doctor"]),
        ("sluice restore au", ["auctions", "auctions_submitted"]),
        ("sluice checkpoints list ssh", ["ssh_threats"]),
        ("sluice doctor au", ["auctions", "auctions_submitted"]),
        ("sluice restore nothing", []),
    ],
)
def test_a_shell_completes_commands_and_pipelines(
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the shell asks: by variables, of a command without arguments."""
    monkeypatch.setenv("_SLUICE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))

    with pytest.raises(SystemExit):
        app(args=[], prog_name="sluice")

    asked = capsys.readouterr()
    assert (asked.out.split(), asked.err) == (offered, "")


SCHEMA = pa.schema([("word", pa.string())])


def append(folder: Path, *words: str) -> None:
    loaded(folder).append(pa.table({"word": list(words)}, SCHEMA))


def test_an_expired_snapshot_is_told_with_the_command_that_goes_on(
    sluice: Sluice, without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    a_table(lake, SCHEMA)
    pipeline = Pipeline("words", parallelism=1)
    rows = pipeline.source("rows", IcebergTable(TABLE, properties(lake), bounded=False))
    rows.key_by("word").aggregate("counted", n=agg.count()).sink(
        "out", FilesTable(upsert_key=("word",))
    )
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"words": pipeline}.__getitem__)
    monkeypatch.setattr("sluice.cli.run.local_session", lambda **_: nullcontext(NoSession()))
    monkeypatch.setenv("SLUICE_ROOT", f"file://{tmp_path}/jobs")
    monkeypatch.chdir(tmp_path)
    job = open_job(pipeline, StoreLocation(root=f"file://{tmp_path}/jobs"))
    append(lake, "fine")
    assert sluice("run", "words", "--epochs", 1).code == 0
    for word in ("gone", "gone", "left"):
        append(lake, word)
    unread = [one.snapshot_id for one in loaded(lake).metadata.snapshots[1:-1]]
    loaded(lake).maintenance.expire_snapshots().by_ids(unread).commit()

    refused = sluice("run", "words", "--epochs", 1)
    with pytest.raises(SourceUnreadable):  # As Airflow's task asks.
        trigger_one(job)
    health = pipeline_line(job).health
    listed = sluice("checkpoints", "list", "words")
    assert health is not None
    assert health.next_step is not None
    told = shlex.split(health.next_step.command)
    mended = sluice(*told[1:], "--epochs", 1, "--output", "out.json")

    assert told == ["sluice", "run", "words", "--fresh"]
    assert (refused.code, "'sluice run words --fresh'" in refused.err) == (1, True), refused.err
    assert "have expired before they were read" in health.says
    assert "  sluice run words --fresh\n" in listed.out
    assert mended.code == 0, mended.err
    counts = {row["word"]: row["n"] for row in json.loads(Path("out.json").read_text())}
    assert counts == {"fine": 1, "gone": 2, "left": 1}  # All that the table has now, and once.
    assert job.state().status is JobStatus.RUNNING  # Airflow goes on from here.
