"""Names that some layer would take for other columns are refused, by name."""

from __future__ import annotations

import pytest

from sluice.connectors.columns import OURS, check_names
from sluice.errors import ConfigurationError


@pytest.mark.parametrize("name", [*OURS, "_MALFORMED", "_Source"])
def test_a_name_of_ours_is_refused_in_upper_and_lower_case(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a.parquet has a column '{name}', a name that"):
        check_names(["n", name], "a.parquet")


@pytest.mark.parametrize("name", ["*", "^n$", "^.*$", "^\n$"])
def test_a_name_that_is_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="which looks like a pattern of names; rename it"):
        check_names(["n", name], "a.parquet")


def test_other_names_are_taken_once_each() -> None:
    check_names(["n", "N", "a.b", "`", "^n", "n$", "**", "", " "], "a.parquet")
    with pytest.raises(ConfigurationError, match=r"a\.parquet has two columns 'n'"):
        check_names(["n", "m", "n"], "a.parquet")
