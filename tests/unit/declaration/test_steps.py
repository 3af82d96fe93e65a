"""The columns that a source's steps read: never fewer than they name."""

from __future__ import annotations

import pytest

from sluice.declaration.expressions import Filter, Projection, Step, columns_read

NAMES = ["id", "price", "name", "größe", "of`f"]
ALWAYS = ["größe", "of`f"]  # Names that SQL may spell in more than one way.


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        ([Projection(("price * 2 AS double",))], ["price", *ALWAYS]),
        ([Filter("ID > 1"), Projection(("`name`",)), Filter("x")], ["id", "name", *ALWAYS]),
        ([Projection(("price AS p",)), Projection(("p * id",))], ["price", *ALWAYS]),
        ([Projection(("1 AS one",))], ALWAYS),
        ([Projection(("*", "1 AS one")), Projection(("name",))], ["name", *ALWAYS]),
        ([Projection(("/* all */ *",))], None),
        ([Projection(("struct( * ) AS all",))], None),
        ([Projection(("* EXCEPT (id)",))], None),
        ([Filter("id > 1")], None),
        ([], None),
    ],
)
def test_a_select_without_a_star_says_which_columns_are_read(
    steps: list[Step], read: list[str] | None
) -> None:
    assert columns_read(steps, NAMES) == read


def test_what_is_looked_at_behind_the_steps_is_read_with_what_they_name() -> None:
    steps = [Filter("id > 1")]

    assert columns_read(steps, NAMES, ["price"]) == ["id", "price", *ALWAYS]
