"""Statistics survive their bytes; their keys survive their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import CheckpointId
from sluice.errors import ProtocolViolation
from sluice.figures.record import CheckpointStatistics
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import decode_statistics, encode_plan, encode_statistics
from tests.builders import a_plan

PATHS = PipelinePaths("auctions")


@given(st.from_type(CheckpointStatistics))
def test_statistics_survive_their_bytes(statistics: CheckpointStatistics) -> None:
    assert decode_statistics(encode_statistics(statistics), "key") == statistics


def test_other_bytes_are_refused_by_name() -> None:
    with pytest.raises(ProtocolViolation, match="key is a plan, not a checkpoint statistics"):
        decode_statistics(encode_plan(a_plan()), "key")


@given(st.integers(1, 10**10 - 1))
def test_a_key_names_its_checkpoint(number: int) -> None:
    key = PATHS.statistics(number)

    assert PATHS.is_statistics(key)
    assert PATHS.statistics_of(key) == CheckpointId(number)
    assert PATHS.checkpoint_of(key) is None  # No garbage by its id.


@pytest.mark.parametrize("key", ["auctions/statistics/7", "other/statistics/0000000007", "x"])
def test_other_names_are_foreign(key: str) -> None:
    assert not PATHS.is_statistics(key)
