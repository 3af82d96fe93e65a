"""State as data: savepoints rewritten and bootstrapped in batch (Flink's State Processor API).

    job = open_job("auctions", "s3://my-bucket/checkpoints")
    writer = SavepointWriter.from_existing_savepoint(job, "before")
    writer.transform("per_auction", lambda rows: rows.filter(pl.col("bids") > 1))
    writer.write("after")

The page "State as data" of the documentation describes it.
"""

from sluice.state_processor.opening import open_job
from sluice.state_processor.savepoint_writer import SavepointWriter
from sluice.state_processor.schemas import state_tables
from sluice.state_processor.writing import WrittenSavepoint, WrittenTable
from sluice.views.keyed_state import open_state

__all__ = [
    "SavepointWriter",
    "WrittenSavepoint",
    "WrittenTable",
    "open_job",
    "open_state",
    "state_tables",
]
