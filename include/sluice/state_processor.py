"""State as data: savepoints rewritten and bootstrapped in batch (Flink's State Processor API).

    job = open_job("auctions", "s3://my-bucket/checkpoints")
    writer = SavepointWriter.from_existing_savepoint(job, "before")
    writer.transform("per_auction", lambda rows: rows.filter(pl.col("bids") > 1))
    writer.write("after")

See the page "State as data" of the documentation.
"""

from sluice.local.savepoint_tables import state_tables
from sluice.local.savepoint_writer import SavepointWriter, WrittenSavepoint, WrittenTable, open_job
from sluice.surface.state import open_state

__all__ = [
    "SavepointWriter",
    "WrittenSavepoint",
    "WrittenTable",
    "open_job",
    "open_state",
    "state_tables",
]
