"""The two demos on a real local Spark, each against another computation of its result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.ssh_threats import parse_sshd
from sluice.cli.run import final_table
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_result_table, open_side_table
from sluice.local.driver import Epoch, run_epochs
from sluice.surface.checkpoints import history
from tests.best_auctions import best_auctions
from tests.spark.folder_job import no_failure
from tests.spark.sshd_log import Alert, write_allowlist, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(name="threats")
def _threats(submitted: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """Submit the pipeline over the logs at a path."""
    allowlist = write_allowlist(tmp_path / "allow.txt")

    def start(logs: Path, **how: int) -> Job:
        return submitted("ssh_threats", input=logs, allowlist=allowlist, **how)

    return start


def one_failure(epoch: Epoch) -> None:
    assert epoch.failure is None or epoch.plan.checkpoint_id == 2, epoch.failure


def alerts(job: Job) -> list[Alert]:
    table = final_table(job, job.state().configuration.params)
    assert table.column_names == ["source_ip", "window_start", "failed", "users"]
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_alerts_equal_those_of_plain_python(
    spark: SparkSession, threats: Callable[..., Job], tmp_path: Path
) -> None:
    expected = write_log(tmp_path / "auth.log", lines=1_500, seed=3)
    job = threats(tmp_path / "auth.log", parallelism=3, max_records=700)

    status = run_epochs(job, spark, epochs=None, drain=False, report=no_failure)

    assert expected
    assert status is JobStatus.FINISHED
    assert alerts(job) == expected
    assert [(r.status, r.records) for r in history(job)] == [
        ("COMPLETED", 700),
        ("COMPLETED", 700),
        ("COMPLETED", 100),
    ]


def test_a_window_may_span_two_files_of_two_hosts(
    spark: SparkSession, threats: Callable[..., Job], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    expected_of_one = write_log(logs / "a.log", lines=200, seed=7)
    write_log(logs / "b.log", lines=200, seed=7)
    job = threats(logs, parallelism=2, max_records=300)

    run_epochs(job, spark, epochs=None, drain=False, report=no_failure)

    doubled = {row[:2]: row for row in alerts(job)}
    assert {
        (ip, window): (ip, window, 2 * failed, users)
        for ip, window, failed, users in expected_of_one
    }.items() <= doubled.items()
    assert open_side_table(job, "window_rule.late").row_count() == 0


def test_a_malformed_line_is_reported_with_its_file_and_number(
    spark: SparkSession, threats: Callable[..., Job], tmp_path: Path
) -> None:
    log = tmp_path / "auth.log"
    write_log(log, lines=5, seed=1)
    with log.open("ab") as file:
        file.write(b"\xff\xfe not a log line\n\n")
    job = threats(log, parallelism=2, max_records=100)

    run_epochs(job, spark, epochs=None, drain=False, report=no_failure)

    rows = open_side_table(job, "parse.malformed").read().to_pylist()
    assert [(row["partition"], row["record_number"], row["reason"]) for row in rows] == [
        ("auth.log", 6, "not a line of sshd")
    ]
    assert rows[0]["line"] == "\\xff\\xfe not a log line"


def test_a_year_begins_in_the_middle_of_a_log_and_may_be_a_leap_year(spark: SparkSession) -> None:
    stamps = ["Dec 31 23:59:59", "Jan  1 00:00:00", "Feb 29 12:00:00", "2016-03-01T01:02:03Z"]
    lines = spark.createDataFrame(
        [
            (f"{stamp} host sshd[7]: Failed password for root from 10.0.0.1 port 1 ssh2", None)
            for stamp in [*stamps, "Feb 30 12:00:00"]
        ],
        "line string, _source struct<partition: string, record: long>",
    )

    rows = parse_sshd(lines, since="2015-03-01").select("at", "_malformed").collect()

    assert [row["at"] and f"{row['at'].astimezone(UTC):%Y-%m-%d %H:%M:%S}" for row in rows] == [
        "2015-12-31 23:59:59",
        "2016-01-01 00:00:00",
        "2016-02-29 12:00:00",
        "2016-03-01 01:02:03",
        None,
    ]
    assert [row["_malformed"] for row in rows] == [None] * 4 + ["not a line of sshd"]


def test_a_log_may_be_of_one_year_and_of_none_that_is_not(spark: SparkSession) -> None:
    line = "Jan  1 00:00:00 host sshd[7]: Failed password for root from 10.0.0.1 port 1 ssh2"
    lines = spark.createDataFrame(
        [(line, None)], "line string, _source struct<partition: string, record: long>"
    )

    (row,) = parse_sshd(lines, since="2015-03-01", year="2015").collect()

    assert row["at"].astimezone(UTC) == datetime(2015, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match=r"older than '15-3-1', which is no day; write si"):
        parse_sshd(lines, since="15-3-1")


def test_a_killed_worker_aborts_the_checkpoint_and_changes_nothing(
    spark: SparkSession,
    threats: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = write_log(tmp_path / "auth.log", lines=600, seed=3)
    job = threats(tmp_path / "auth.log", parallelism=2, max_records=200)
    monkeypatch.setenv("SLUICE_FAULT", "kill-worker stage=window_rule checkpoint=2")

    status = run_epochs(job, spark, epochs=None, drain=False, report=one_failure)

    assert status is JobStatus.FINISHED
    assert alerts(job) == expected
    assert [(r.id, r.status, r.reason) for r in history(job)] == [
        (1, "COMPLETED", None),
        (2, "FAILED", "TASK_FAILURE"),
        (3, "COMPLETED", None),
        (4, "COMPLETED", None),
    ]
    assert job.state().generation == 2
    assert job.plan(CheckpointId(2)) is None


def test_parallelism_may_change_between_runs(
    spark: SparkSession, threats: Callable[..., Job], tmp_path: Path
) -> None:
    expected = write_log(tmp_path / "auth.log", lines=900, seed=11)
    job = threats(tmp_path / "auth.log", parallelism=1, max_records=300)
    params = dict(job.state().configuration.params)

    for parallelism in (3, 2):
        run_epochs(job, spark, epochs=1, drain=False, report=no_failure)
        rescaled = configure(
            job.pipeline, params, parallelism=parallelism, max_records_per_epoch=300
        )
        restore(job, Latest(), configuration=rescaled)
    epochs: list[Epoch] = []
    run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    assert alerts(job) == expected
    assert [task.parallelism for task in epochs[-1].plan.tasks] == [2, 2, 2]


EVENTS = 20_000


def test_the_ranking_equals_one_query_over_all_events(
    spark: SparkSession, submitted: Callable[..., Job]
) -> None:
    job = submitted("auctions", parallelism=2, max_records=9_000, events=EVENTS)
    epochs: list[Epoch] = []

    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    table = open_result_table(job, job.state().configuration.params).read()
    ranking = table.sort_by([("category", "ascending"), ("rank", "ascending")]).to_pylist()
    assert status is JobStatus.FINISHED
    assert len(epochs) == 3
    assert ranking == best_auctions(EVENTS)
