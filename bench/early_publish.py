"""The time until readers see an epoch, with AT_LEAST_ONCE and EXACTLY_ONCE, of two stages.

    python -m bench.early_publish [EPOCHS]

The first stage has the sink that is looked at.  Printed is the time from a
checkpoint's trigger until its rows are visible, by the clock of the folder that the table is in.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointingMode
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.session import local_session
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import history

EVENTS_PER_EPOCH = 300_000


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    seconds: dict[CheckpointingMode, list[float]] = {mode: [] for mode in CheckpointingMode}
    with tempfile.TemporaryDirectory() as folder, local_session() as spark:
        jobs = {mode: _a_job(mode, Path(folder), epochs) for mode in CheckpointingMode}
        for _ in range(epochs):
            for job in jobs.values():
                run_epochs(job, spark, epochs=1, drain=False, report=lambda _: None)
        for mode, job in jobs.items():
            manifests = {
                listed.key: listed.modified_ms
                for listed in job.store.list(f"{job.paths.table('early')}/_manifests/")
            }
            for record in history(job)[-epochs + 1 :]:  # The first one warms Spark up.
                key = f"{job.paths.table('early')}/_manifests/{record.id:020d}.json"
                seconds[mode].append((manifests[key] - record.triggered_at_ms) / 1000)
    for mode, taken in seconds.items():
        print(
            f"{mode.value:15} {min(taken):6.2f} s minimum, {statistics.median(taken):6.2f} median"
        )


def _a_job(mode: CheckpointingMode, folder: Path, epochs: int) -> Job:
    pipeline = Pipeline(mode.value.lower(), checkpointing=Checkpointing(mode=mode))
    events = pipeline.source("events", Nexmark((epochs + 1) * EVENTS_PER_EPOCH))
    bids = events.key_by("bidder").aggregate("bids_of", n=agg.count(), spent=agg.sum("price"))
    bids.sink("early", FilesTable(upsert_key=("bidder",)))
    bids.key_by("n").aggregate("histogram", people=agg.count()).sink(
        "late", FilesTable(upsert_key=("n",))
    )
    job = open_job(pipeline, StoreLocation(root=f"file://{folder}"))
    submit(job, configure(pipeline, {}, max_records_per_epoch=EVENTS_PER_EPOCH))
    return job


if __name__ == "__main__":
    main()
