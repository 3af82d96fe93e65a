"""What random plans have found once, shrunk: it is played again with every test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.plans import from_json
from tests.fuzz.play import play, playing

FOUND = sorted(Path(__file__).with_name("found").glob("*.json"))


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_found_once_stays_right(file: Path) -> None:
    with playing():
        failure = play(from_json(file.read_text()))

    assert failure is None
