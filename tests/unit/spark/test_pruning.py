"""Which files a stage need not read, by filters on the columns of their folders."""

from __future__ import annotations

import pytest

from sluice.connectors.files.folders import FolderColumns
from sluice.core.plan import Slice
from sluice.declaration.expressions import Filter, Projection, Step
from sluice.spark.pruning import pruned_slices

FILES = [
    "dt=2026-03-01/hour=1/c=de/a",
    "dt=2026-03-02/hour=2/c=__HIVE_DEFAULT_PARTITION__/b",
    "dt=2026-03-03/hour=3/c=fr/c",
]
FOLDERS = FolderColumns.inferred(FILES, "here")


def kept(*steps: Step) -> str:
    slices = [
        Slice(partition=file, start=at, end=at + 1, first_record=at, records=1)
        for file in FILES
        for at in range(2)
    ]
    found = pruned_slices(slices, steps, lambda files: FOLDERS.table(files, "here"))
    assert len(found.kept) + len(found.pruned) == len(slices)
    return "".join(dict.fromkeys(piece.partition[-1] for piece in found.kept))


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("dt = '2026-03-02'", "b"),
        ("'2026-03-02' <= DT and amount > 5", "bc"),
        ("dt in ('2026-03-01', '2026-03-03')", "ac"),
        ("dt between '2026-03-02' and '2026-03-09' and hour + 1 < 4", "b"),
        ("not (dt = '2026-03-02')", "ac"),
        ("dt > DATE '2026-03-01' or amount > 5", "abc"),
        ("c = 'de'", "a"),  # A null is not 'de', and not another one either.
        ("c != 'de'", "c"),
        ("c is null or hour = 3", "bc"),
        ("dt = 'no day'", "abc"),  # Spark says what is wrong.
        ("hour / 0 = 1", "abc"),
        ("soundex(c) = 'D000'", "abc"),  # Only Spark computes it.
        ("amount > 5", "abc"),
        ("false", ""),
    ],
)
def test_files_of_which_no_row_passes_are_left_out(condition: str, files: str) -> None:
    assert kept(Filter(condition)) == files


def test_only_filters_that_stand_directly_behind_the_source_count() -> None:
    behind = Projection(("amount", "hour + 1 AS hour"))

    assert kept(Filter("hour > 1"), Filter("hour < 3"), behind, Filter("hour > 9")) == "b"
    assert kept(behind, Filter("hour = 1")) == "abc"


def test_a_folder_may_be_called_as_a_column_that_only_stages_may_not_have() -> None:
    files = ["_place=2/a", "_place=1/b", "_place=0/c"]
    folders = FolderColumns.inferred(files, "here")
    slices = [Slice(partition=f, start=0, end=1, first_record=0, records=1) for f in files]

    found = pruned_slices(
        slices, [Filter("_place = 2")], lambda files: folders.table(files, "here")
    )

    assert [piece.partition for piece in found.kept] == ["_place=2/a"]
