"""Machines that share nothing but the bucket: one is lost in mid-epoch, others come."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.spark_cluster import Worker
from sluice.core.ids import CheckpointId
from tests.best_auctions import best_auctions
from tests.cluster.conftest import WAIT_S, Client, ended, whole

STAGE = "bid_statistics"
PER_EPOCH = 1_000
Strike = Callable[[Worker], None]


def test_a_worker_is_lost_in_mid_epoch_and_the_job_is_rescaled(client: Client, root: str) -> None:
    with client.cluster.connect_server() as remote:
        run = a_run(remote, root, epochs_of_input=4)

        left, missing = run_and_strike(client, root, run, 2, Worker.kill)
        new = client.cluster.add_worker("worker-3")
        client.sluice(*run, "--parallelism", "4", "--output", "result.parquet")

    assert missing <= left.cached() | new.cached(), "read from the bucket"
    assert client.rows("result.parquet") == best_auctions(4 * PER_EPOCH)


@whole
def test_machines_are_lost_again_and_again_from_2_to_4_to_3_subtasks(
    client: Client, root: str
) -> None:
    """An executor, a worker, and a worker that comes back with an empty disk meanwhile."""
    cluster = client.cluster

    def replace(worker: Worker) -> None:
        worker.kill()
        cluster.add_worker(worker.name)

    with cluster.connect_server() as remote:
        run = a_run(remote, root, epochs_of_input=8)
        run_and_strike(client, root, run, 2, Worker.kill_executors)
        run_and_strike(client, root, run, 4, replace)
        run_and_strike(client, root, run, 3, Worker.kill)
        client.sluice(*run, "--parallelism", "3", "--output", "result.parquet")

    assert client.rows("result.parquet") == best_auctions(8 * PER_EPOCH)


def a_run(remote: str, root: str, *, epochs_of_input: int) -> tuple[str, ...]:
    events = str(epochs_of_input * PER_EPOCH)
    options = ("--max-records-per-epoch", str(PER_EPOCH), "--events", events)
    return ("run", "auctions", "--remote", remote, "--root", root, *options)


def run_and_strike(
    client: Client, root: str, run: tuple[str, ...], parallelism: int, strike: Strike
) -> tuple[Worker, set[str]]:
    """Take two checkpoints, and strike a worker while the subtasks of the second are at work.

    Returns another worker, and the segments of the first that only the struck one had cached.
    """
    before = completed(client, root)
    first, second = CheckpointId(before + 1), CheckpointId(before + 2)
    fault = f"hang-worker stage={STAGE} checkpoint={second} seconds=5"
    begun = client.begin(
        *run, "--parallelism", str(parallelism), "--epochs", "2", SLUICE_FAULT=fault
    )
    until(lambda: completed(client, root) >= first, "a checkpoint")
    struck, left, missing = whose_state_is_not_elsewhere(client, root, first)
    until(lambda: has_uploaded(client, root, second), "an upload")
    strike(struck)
    ended(begun)
    assert completed(client, root) == second
    return left, missing


def whose_state_is_not_elsewhere(
    client: Client, root: str, checkpoint_id: CheckpointId
) -> tuple[Worker, Worker, set[str]]:
    """A worker, another one, and the segments of the checkpoint that the first alone has cached."""
    stage = client.job(root).metadata(checkpoint_id).stage(STAGE)
    assert stage is not None
    segments = {handle.segment.checksum for each in stage.subtasks for handle in each.state}
    one, other = client.cluster.alive
    if not segments & one.cached() - other.cached():
        one, other = other, one
    missing = segments & one.cached() - other.cached()
    assert missing, "a worker had a subtask of the stage"
    return one, other, missing


def completed(client: Client, root: str) -> int:
    """The id of the newest completed checkpoint; 0 when there is none."""
    latest = client.job(root).state().latest_completed
    return 0 if latest is None else latest.checkpoint_id


def has_uploaded(client: Client, root: str, checkpoint_id: CheckpointId) -> bool:
    """Whether a subtask of the stage has written its state, which it acknowledges later."""
    job = client.job(root)
    return any(True for _ in job.store.list(job.paths.shared_segments(STAGE, checkpoint_id)))


def until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S} s"
        time.sleep(0.1)
