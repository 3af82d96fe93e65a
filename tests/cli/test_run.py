"""``sluice run`` in this process, with lists of rows in the place of Spark."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest

from sluice import aggregates as agg
from sluice.core.configuration import Retention
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.cli.conftest import Sluice


class NoSession:
    """A stage that is carried out elsewhere marks its Spark jobs alone."""

    def addTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's

    def removeTag(self, tag: str) -> None: ...  # noqa: N802


def test_a_refused_checkpoint_is_not_the_end_of_the_input(
    sluice: Sluice, without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    is_mended = False

    def refuses(checkpoint_id: int, timestamp_ms: int) -> None:
        if checkpoint_id >= 2 and not is_mended:
            raise LookupError("no flags")

    never = Retention.NEVER_RETAIN_AFTER_TERMINATION
    pipeline = Pipeline(
        "auctions", checkpointing=Checkpointing(externalized_checkpoint_retention=never)
    )
    pipeline.hook("flags", trigger=refuses, restore=lambda checkpoint_id, state: None)
    clicks = pipeline.source("clicks", Files("clicks.parquet", "parquet")).key_by("name")
    clicks.aggregate("counted", n=agg.count()).sink("out", FilesTable(upsert_key=("name",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)
    monkeypatch.setattr("sluice.cli.run.local_session", lambda **_: nullcontext(NoSession()))
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"name": ["ann", "bob", "ann", "cid"]}).write_parquet("clicks.parquet")
    command = ["run", "auctions", "--parallelism", "1", "--max-records-per-epoch", "2"]
    command += ["--root", f"file://{tmp_path}/jobs", "--output", "out.json", "--json"]

    refused = sluice(*command)
    written_when_refused = Path("out.json").exists()
    is_mended = True
    mended = sluice(*command)

    assert (refused.code, refused.out, written_when_refused) == (1, "", False)
    assert refused.err.endswith(
        "TRIGGER_CHECKPOINT_FAILURE: master hook 'flags' failed: no flags\n"
    )
    assert "is SUSPENDED; mend it and run it again, and it goes on from checkpoint 1" in refused.err
    assert mended.code == 0, mended.err
    rows = json.loads(Path("out.json").read_text())
    assert {(row["name"], row["n"]) for row in rows} == {("ann", 2), ("bob", 1), ("cid", 1)}
    assert mended.json["status"] == "FINISHED"
