"""Jobs of one Spark Connect server on a cluster: a refusal costs one execution, two run at once."""

from __future__ import annotations

from pathlib import Path

from sluice.devstack.servers import BUCKET
from tests.best_auctions import best_auctions
from tests.cluster.conftest import WAIT_S, Client, ended, whole
from tests.cluster.test_workers import a_run
from tests.spark_events import event_log, failed_tasks

pytestmark = whole
STAGE = "bid_statistics"
EVENTS = 1_000  # One epoch.


def test_a_refusal_costs_one_execution_and_two_jobs_run_at_once(
    client: Client, tmp_path: Path
) -> None:
    logs = tmp_path / "events"
    with client.cluster.connect_server(event_log(logs)) as remote:

        def run_of(name: str) -> tuple[str, ...]:
            run = a_run(remote, f"s3://{BUCKET}/{name}", epochs_of_input=1)
            return (*run, "--parallelism", "2", "--output", f"{name}.parquet")

        declined = client.begin(
            *run_of("declined"), "--epochs", "1", SLUICE_FAULT=f"decline stage={STAGE}"
        )
        _, errors = declined.communicate(timeout=WAIT_S)
        refused = failed_tasks(logs)

        both = [client.begin(*run_of(name)) for name in ("one", "other")]
        for run in both:
            ended(run)
        lost = failed_tasks(logs)

    assert "fault injected: decline" in errors
    assert refused == lost == []
    for name in ("one", "other"):
        assert client.rows(f"{name}.parquet") == best_auctions(EVENTS)
