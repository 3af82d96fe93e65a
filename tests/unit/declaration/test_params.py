"""Parameters: the given value, else the environment's, else the default; resolved once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.declaration.params import Param, param, resolve_params, value_of
from sluice.errors import ConfigurationError

INPUT = param("input", is_path=True, help="the log")
YEAR = param("year", 2015)
NOTE = param("note", required=False)


def test_a_given_value_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolve_params([YEAR], {}, "logs") == {"year": "2015"}

    monkeypatch.setenv("SLUICE_PARAM_YEAR", "2020")

    assert resolve_params([YEAR], {}, "logs") == {"year": "2020"}
    assert resolve_params([YEAR], {"year": "2024"}, "logs") == {"year": "2024"}


def test_a_missing_value_is_named_with_both_ways_to_set_it() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"parameter 'input' is not set \(the log\); pass --param input=VALUE or set "
        "SLUICE_PARAM_INPUT",
    ):
        resolve_params([INPUT], {}, "logs")


def test_an_optional_one_may_be_missing() -> None:
    assert resolve_params([NOTE], {}, "logs") == {}
    assert value_of(NOTE, {}) == ""


def test_an_undeclared_value_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        ConfigurationError, match="pipeline 'logs' has no parameter 'yaer'; it has note, year"
    ):
        resolve_params([YEAR, NOTE], {"yaer": "1"}, "logs")
    with pytest.raises(ConfigurationError, match="it has none"):
        resolve_params([], {"x": "1"}, "logs")


def test_a_path_is_made_absolute_and_a_uri_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    for path, resolved in (
        ("a/../b.log", f"{tmp_path}/b.log"),
        ("~/b", str(Path("~/b").expanduser())),
        ("s3://bucket/b", "s3://bucket/b"),
    ):
        assert resolve_params([INPUT], {"input": path}, "logs") == {"input": resolved}


def test_a_value_is_text_whatever_it_was_declared_as() -> None:
    assert value_of(7, {}) == "7"
    assert value_of("seven", {}) == "seven"
    assert value_of(YEAR, {}) == "2015"
    assert value_of(YEAR, {"year": "1999"}) == "1999"
    with pytest.raises(ConfigurationError, match="parameter 'input' is not set"):
        value_of(INPUT, {})


def test_one_with_a_default_is_not_required() -> None:
    assert Param(name="year", default="2015", required=False) == YEAR
    assert param("empty", "").required is False
    assert INPUT.required


@pytest.mark.parametrize("name", ["", "a b", "a=b", "--year", "1st", "a-b"])
def test_a_name_that_no_submission_can_give_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name: letters, digits and _"):
        param(name)
