"""``sluice doctor`` prints a line for each check, and ends with 1 when one of them is a problem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.jobs import a_job, a_pipeline, keys_of
from sluice.coordinator.submission import configure, submit
from sluice.job.job import Job
from tests.cli.conftest import Sluice
from tests.contract.conftest import environment_with_sluice
from tests.subtasks import take_checkpoint

LAZY = {"airflow", "boto3", "botocore", "grpc", "pyspark", "psycopg", "confluent_kafka"}


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", "1")
    monkeypatch.delenv("SLUICE_SPARK_REMOTE", raising=False)


def test_a_sound_folder_is_healthy(sluice: Sluice, tmp_path: Path) -> None:
    answer = sluice("doctor", "auctions", "--root", f"file://{tmp_path}/root", "--json")

    assert answer.code == 0
    assert answer.json["healthy"] is True
    assert answer.json["root"] == f"file://{tmp_path}/root"
    found = {one["check"]: one["status"] for one in answer.json["findings"]}
    assert {name for name, status in found.items() if status != "ok"} == set()
    assert {
        *("Python", "libraries", "sluice[spark]", "Java", "segment cache", "pipelines", "root"),
        *("write", "list", "clock", "conditional writes", "delete", "job auctions"),
    } <= found.keys()


def test_the_lines_fit_a_narrow_terminal(sluice: Sluice, tmp_path: Path) -> None:
    answer = sluice("doctor", "--root", f"file://{tmp_path}/root")

    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "ok      conditional writes a second writer is refused" in answer.out


def test_a_problem_is_exit_code_1_and_says_how_many(sluice: Sluice, job: Job) -> None:
    answer = sluice("doctor", "--root", job.store.root)

    assert answer.error == "error: sluice does not work here for the one problem above"
    assert "problem root" in answer.out


def test_a_problem_is_exit_code_1_in_json_too(sluice: Sluice) -> None:
    answer = sluice("doctor", "--json")

    assert (answer.code, answer.json["healthy"], answer.err) == (1, False, "")


def test_a_pipeline_that_is_not_declared_is_a_problem(sluice: Sluice, tmp_path: Path) -> None:
    answer = sluice("doctor", "nothing", "--root", f"file://{tmp_path}", "--json")

    last = answer.json["findings"][-1]
    assert (answer.code, last["check"], last["status"]) == (1, "job nothing", "problem")
    assert "there is no pipeline 'nothing'" in last["message"]


def test_what_earlier_journals_left_is_a_warning(sluice: Sluice, job: Job, tmp_path: Path) -> None:
    here = a_job(job.pipeline, root=f"file://{tmp_path}/root")
    submit(here, configure(here.pipeline, {}))
    here.store.put(here.names.of_journal("j-earlier").journal_entry(58), b"late")

    answer = sluice("doctor", "auctions", "--root", here.store.root, "--json")

    last = answer.json["findings"][-1]
    assert (answer.code, last["check"], last["status"]) == (0, "job auctions", "warning")
    assert "1 files of earlier journals (4 B): the root was emptied while" in last["message"]
    assert "'sluice gc auctions' deletes them" in last["message"]


@pytest.mark.parametrize("lost", ["shared", "_metadata"])
def test_a_checkpoint_of_which_a_file_is_gone_is_a_problem(
    sluice: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr("sluice.cli.doctor.load_pipeline", {"auctions": a_pipeline()}.__getitem__)
    job = a_job(root=f"file://{tmp_path}/root")
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    whole = sluice("doctor", "auctions", "--root", job.store.root, "--json")
    key = next(key for key in keys_of(job) if lost in key)
    job.store.delete([key])

    answer = sluice("doctor", "auctions", "--root", job.store.root, "--json")

    assert whole.code == 0
    last = answer.json["findings"][-1]
    assert (answer.code, last["check"], last["status"]) == (1, "job auctions", "problem")
    assert "latest checkpoint 1, which cannot be restored" in last["message"]
    assert key in last["message"]


def test_a_secret_in_an_address_is_not_printed(
    sluice: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SPARK_REMOTE", "sc://127.0.0.1:1/;token=s3cr3t-of-mine")

    answer = sluice("doctor", "--root", f"file://{tmp_path}", "--json")

    assert "Spark server" in answer.out
    assert "s3cr3t" not in answer.out


def test_no_heavy_library_is_imported_for_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sluice.cli.main import main\ntry:\n"
        f"    main(['doctor', '--json', '--root', 'file://{tmp_path}'])\n"
        f"except SystemExit:\n    print(sorted({LAZY} & set(sys.modules)), file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=environment_with_sluice(),
        capture_output=True,
        text=True,
    )

    assert done.stderr.splitlines()[-1] == "[]"
