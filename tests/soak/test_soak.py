"""``make soak`` for seconds: processes die or freeze, and rows and files are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.play import Soak, grows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]


def test_a_short_soak_has_every_row_once_and_leaves_nothing(tmp_path: Path) -> None:
    project = tmp_path / "project"
    found = Soak(project, seconds=25, every_s=9, rests_s=1, epochs=3, seed=1).play()

    said = [what for _, what in found.events]
    assert any(what.startswith("kill") for what in said), said
    assert "restore soak --savepoint s1 --roll-back-tables: exit code 0" in said
    assert found.problems == []
    assert all(found.rows.values()), found
    assert found.requests
    assert all(asked for _, asked in found.requests), found


def test_requests_that_grow_are_seen_and_those_of_the_first_epochs_are_not_compared() -> None:
    assert grows([10 + epoch for epoch in range(120)])
    assert grows([30] * 40 + [20] * 40 + [31] * 40)
    assert not grows([*range(40), *[40, 44] * 40])
    assert not grows([1] * 30 + [99] * 29)
