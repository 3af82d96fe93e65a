"""How operator lists are dealt out, and the parallelism that a stage may have.

Flink's vectors of key groups are in ``tests/conformance``, any job's in
``tests/property/core/test_key_groups.py``.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.key_groups import check_parallelism, dealt_out
from sluice.errors import ConfigurationError


@pytest.mark.parametrize(
    ("parallelism", "maximum", "message"),
    [
        (0, 128, r"stage 'parse' has parallelism 0"),
        (9, 8, r"stage 'parse' has parallelism 9.*max_parallelism 8"),
        (1, 0, r"stage 'parse' has max_parallelism 0; choose 1 to 32768"),
        (1, 32769, r"stage 'parse' has max_parallelism 32769; choose 1 to 32768"),
    ],
)
def test_an_impossible_parallelism_is_refused_with_the_stage(
    parallelism: int, maximum: int, message: str
) -> None:
    check_parallelism("parse", 8, 8)

    with pytest.raises(ConfigurationError, match=message):
        check_parallelism("parse", parallelism, maximum)


@pytest.mark.parametrize(
    ("elements", "parallelism", "parts"),
    [
        ({"a": 10}, 3, {"a": [(0, 4), (4, 7), (7, 10)]}),
        ({"a": 1}, 2, {"a": [(0, 1), (1, 1)]}),
        ({"a": 0}, 2, {"a": [(0, 0), (0, 0)]}),
        # The odd one of the second list goes to the subtask behind that of the first.
        ({"a": 1, "b": 3}, 2, {"a": [(0, 1), (1, 1)], "b": [(2, 3), (0, 2)]}),
    ],
)
def test_elements_are_dealt_out_in_turn(
    elements: dict[str, int], parallelism: int, parts: dict[str, list[tuple[int, int]]]
) -> None:
    assert dealt_out(elements, parallelism) == parts


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 30)), st.integers(1, 9))
def test_each_element_goes_to_one_subtask_and_none_has_two_more_than_another(
    elements: dict[str, int], parallelism: int
) -> None:
    found = dealt_out(elements, parallelism)

    totals = [0] * parallelism
    for name, parts in found.items():
        covered = sorted(place for start, end in parts for place in range(start, end))
        assert covered == list(range(elements[name]))
        totals = [total + end - start for total, (start, end) in zip(totals, parts, strict=True)]
    assert max(totals) - min(totals) <= 1
