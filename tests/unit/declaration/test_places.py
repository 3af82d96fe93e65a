"""What has to be written of a source or a sink is little, and what it says is held to."""

from __future__ import annotations

import pytest

from sluice.connectors.offsets import OffsetSource
from sluice.connectors.staged_sink import Target, TargetDefaults
from sluice.declaration.places import Barrier, Sink, SinkDefaults, Source, SourceDefaults


def left_by(protocol: type, defaults: type) -> set[str]:
    """The members of *protocol* for which *defaults* has nothing."""
    members = {name for name in vars(protocol) if not name.startswith("_")}
    return members - set(vars(defaults))


def test_of_a_source_at_most_five_methods_have_to_be_written() -> None:
    assert left_by(Source, SourceDefaults) == {"bounded", "schema", "plan", "read"}
    assert OffsetSource.__abstractmethods__ == {"bounded", "name", "schema", "readable", "read"}


def test_of_a_sink_at_most_six_methods_have_to_be_written() -> None:
    whole = {"stage", "commit", "is_published", "compare", "recover", "abort"}
    assert left_by(Sink, SinkDefaults) == whole
    assert left_by(Target, TargetDefaults) == {"publish", "timeline", "recover"}


def test_a_partition_that_waits_without_an_entry_is_refused() -> None:
    """It would not hold the watermark back: its rows would be late, and lost."""
    with pytest.raises(ValueError, match="a waiting partition has an entry in the position"):
        Barrier(position=(), slices=(), exhausted=False, waiting=("new",))
