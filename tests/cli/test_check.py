"""``sluice check`` asks each source whether there is something to read, one's own included."""

from __future__ import annotations

import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from tests.cli.conftest import Sluice
from tests.own_page import names_of_the_page


def test_a_place_of_ones_own_where_nothing_is_is_named(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise ConfigurationError("there is no table events in /nowhere; create it")

    source = names_of_the_page()["Rows"]
    pipeline = Pipeline("auctions")
    rows = pipeline.source("events", source("/nowhere"))
    rows.key_by("id").aggregate("counts", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    assert "counts" in sluice("check", "auctions", "--root", "memory://own").out
    monkeypatch.setattr(source, "check_place", missing, raising=False)
    assert (
        "there is no table events in /nowhere"
        in sluice("check", "auctions", "--root", "memory://own").error
    )
