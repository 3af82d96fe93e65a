"""Rows that are sent by reference: files of one machine, in place of bodies that Spark moves."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sluice.errors import StoreUnavailable
from sluice.exchange.blocks import (
    CARRIED_BYTES,
    LOCAL_FOLDERS,
    BlockFile,
    BlockFolder,
    BlockLocation,
    read_block,
)

ROWS = pl.DataFrame(
    {
        "k": range(CARRIED_BYTES // 8),
        "name": [None if n % 7 == 0 else f"number {n}" for n in range(CARRIED_BYTES // 8)],
        "nested": [{"a": [n]} for n in range(CARRIED_BYTES // 8)],
    }
)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCAL_FOLDERS, f"{tmp_path / 'one'},{tmp_path / 'other'}")
    return tmp_path


def a_folder(checkpoint_id: int, stage: str = "totals") -> BlockFolder:
    return BlockFolder(stage=stage, attempt=f"{checkpoint_id:020d}-000001")


def files(local: Path) -> list[Path]:
    return sorted(local.rglob("*.arrow"))


def test_rows_are_read_from_their_places_in_any_order_and_as_often_as_needed(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        places = [file.write(part) for part in (ROWS[:5_000], ROWS[5_000:])]

    for _ in range(2):  # A task that is tried again reads again.
        assert_frame_equal(read_block(places[1]), ROWS[5_000:])
        assert_frame_equal(read_block(places[0]), ROWS[:5_000])
    assert [place.file for place in places] == [str(one) for one in files(local)] * 2
    assert places[0].offset == 0 < places[1].offset


def test_a_slice_does_not_take_along_the_texts_of_the_rows_around_it(local: Path) -> None:
    long = pl.DataFrame({"name": [f"{n:01000d}" for n in range(1_000)]})

    with BlockFile(a_folder(7), 0) as file:
        file.write(long.filter(pl.int_range(pl.len()) % 100 == 0))

    assert files(local)[0].stat().st_size < 20_000


def test_few_rows_are_carried_and_no_file_is_made_for_them(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        assert not file.takes(ROWS[:5])
        assert file.takes(ROWS)

    assert files(local) == []


def test_without_a_folder_or_without_sparks_own_all_rows_are_carried(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not BlockFile(None, 0).takes(ROWS)
    monkeypatch.delenv(LOCAL_FOLDERS)
    assert not BlockFile(a_folder(7), 0).takes(ROWS)


def test_senders_take_turns_with_the_local_folders(local: Path) -> None:
    places = []
    for sender in range(3):
        with BlockFile(a_folder(7), sender) as file:
            places.append(Path(file.write(ROWS).file).relative_to(local).parts[0])

    assert places == ["one", "other", "one"]


def test_the_first_rows_of_an_attempt_take_the_place_of_earlier_ones_of_the_stage(
    local: Path,
) -> None:
    def written(folder: BlockFolder) -> BlockLocation:
        with BlockFile(folder, 0) as file:
            return file.write(ROWS)

    first, later = written(a_folder(7)), written(a_folder(9))
    other, now = written(a_folder(1, "behind")), written(a_folder(8))

    with pytest.raises(StoreUnavailable, match=r"rows that a subtask sent .*\.arrow"):
        read_block(first)
    # An attempt that is older than another one, of a driver that was thought lost, removes none.
    for place in (later, other, now):
        assert read_block(place).height == ROWS.height


def test_a_file_that_is_cut_off_is_not_read_as_fewer_rows(local: Path) -> None:
    with BlockFile(a_folder(7), 0) as file:
        place = file.write(ROWS)
    with Path(place.file).open("r+b") as written:
        written.truncate(1_000)

    with pytest.raises(StoreUnavailable, match="rows that a subtask sent"):
        read_block(place)
