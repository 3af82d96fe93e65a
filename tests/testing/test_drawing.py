"""The plays that ``assert_exactly_once`` draws are valid, and the same for the same seed."""

from __future__ import annotations

import pyarrow as pa

from sluice.declaration.pipeline import Pipeline
from sluice.local.exactly_once import MOST_EPOCHS, MOST_PARALLELISM, drawn
from sluice.local.given import RowsByEpoch, cut_at
from sluice.local.run_local import Kill, Restore, check_script
from tests.testing.shop import named, totals


def rows(*chunks: int) -> RowsByEpoch:
    tables = tuple(pa.table({"id": pa.array(range(count), pa.int64())}) for count in chunks)
    return RowsByEpoch(tables, is_cut=len(chunks) > 1)


def epochs_of(pipeline: Pipeline, given: dict[str, RowsByEpoch], seed: int) -> int:
    play = drawn(pipeline, given, seed)
    cut = [
        len(cut_at(one, play.bounds[uid]).chunks) if uid in play.bounds else len(one.chunks)
        for uid, one in given.items()
    ]
    return max(cut)


def test_every_script_that_is_drawn_can_be_played() -> None:
    for pipeline, given in (
        (totals(), {"orders": rows(12)}),
        (totals(), {"orders": rows(0)}),
        (totals(), {"orders": rows(3, 4, 0, 2, 1)}),
        (named(), {"orders": rows(5), "names": rows(2)}),
    ):
        for seed in range(200):
            play = drawn(pipeline, given, seed)
            check_script(pipeline, play.script, epochs_of(pipeline, given, seed), ends=True)
            assert 1 <= play.parallelism <= MOST_PARALLELISM


def test_all_kinds_of_plays_are_drawn_and_each_by_its_seed() -> None:
    given = {"orders": rows(12)}
    plays = [drawn(totals(), given, seed) for seed in range(200)]

    assert plays == [drawn(totals(), given, seed) for seed in range(200)]
    assert {len(play.bounds["orders"]) + 1 for play in plays} == set(range(2, MOST_EPOCHS + 1))
    happenings = [one for play in plays for one in play.script]
    assert {one.epoch for one in happenings if isinstance(one, Kill)} == {1, 2, 3, 4}
    restores = [one for one in happenings if isinstance(one, Restore)]
    assert {one.parallelism for one in restores} == set(range(1, MOST_PARALLELISM + 1))
    assert {one.after_epoch - one.to_epoch for one in restores} == {0, 1, 2}


def test_rows_by_epoch_and_tables_are_left_as_they_are() -> None:
    given = {"orders": rows(3, 4), "names": rows(2)}

    assert [drawn(named(), given, seed).bounds for seed in range(5)] == [{}] * 5
