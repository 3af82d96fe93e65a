"""The options for the root, parameters and periods, and their refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.options import location, parameters, watermark, with_flags
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation


@pytest.mark.parametrize(
    ("pairs", "extra", "expected"),
    [
        ([], [], {}),
        (["a=1", "b=x=y", "c="], [], {"a": "1", "b": "x=y", "c": ""}),
        ([], ["--input", "f.log", "--year=2015"], {"input": "f.log", "year": "2015"}),
        ([], ["--max-bids", "--3"], {"max_bids": "--3"}),
        ([], ["--query=a=b"], {"query": "a=b"}),
    ],
)
def test_parameters_are_read_in_every_form(
    pairs: list[str], extra: list[str], expected: dict[str, str]
) -> None:
    assert parameters(pairs, extra) == expected


@pytest.mark.parametrize(
    ("pairs", "extra", "message"),
    [
        (["year"], [], "--param 'year' lacks a value; write --param year=VALUE"),
        ([], ["f.log"], "'f.log' is not understood; write --name VALUE"),
        ([], ["--input"], "--input lacks a value"),
        ([], ["--", "x"], "'--' is not understood"),
        ([], ["-i", "x"], "'-i' is not understood"),
        (["a=1", "a=2"], [], "parameter 'a' is given twice, as 1 and as 2; give it once"),
        (["to_day=1"], ["--to-day", "2"], "parameter 'to_day' is given twice, as 1 and as 2"),
    ],
)
def test_another_form_is_refused_with_the_right_one(
    pairs: list[str], extra: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parameters(pairs, extra)


def test_the_root_that_was_named_wins_over_the_environment_and_that_over_a_folder_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLUICE_ROOT", raising=False)
    assert location(None, None) == StoreLocation(root=f"file://{tmp_path}/.sluice/jobs")

    monkeypatch.setenv("SLUICE_ROOT", "memory://from-environment")
    assert location(None, None).root == "memory://from-environment"
    assert location("memory://named", "http://127.0.0.1:1") == StoreLocation(
        root="memory://named", endpoint_url="http://127.0.0.1:1"
    )


def test_a_refusal_names_the_flag_of_each_choice_once() -> None:
    said = "restore the job again and roll tables back, or accept tables as they are"

    assert with_flags(said) == (
        "restore the job again and roll tables back with --roll-back-tables, or accept tables as "
        "they are with --accept-tables"
    )
    assert with_flags("stage 'a' is gone (allow non-restored state to drop it)") == (
        "stage 'a' is gone (allow non-restored state with --allow-non-restored-state to drop it)"
    )
    assert with_flags("say --accept-tables to accept tables as they are") == (
        "say --accept-tables to accept tables as they are"
    )


@pytest.mark.parametrize(
    ("at_ms", "words"),
    [
        (MIN_WATERMARK, "none"),
        (MAX_WATERMARK, "end of input"),
        (1_500, "1970-01-01 00:00:01.500"),
    ],
)
def test_a_watermark_is_a_moment_unless_nothing_or_everything_was_seen(
    at_ms: int, words: str
) -> None:
    assert watermark(at_ms) == words
