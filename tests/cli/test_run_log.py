"""The log file of a run, which keeps long traces off the terminal."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sluice.cli.run import run_log
from sluice.errors import ConfigurationError, SluiceError, StageFailed

log = logging.getLogger("sluice.test")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def logs() -> list[Path]:
    return sorted(Path(".sluice/logs").iterdir())


def test_nothing_is_left_of_a_run_that_ended_well() -> None:
    with run_log("bids") as path:
        log.warning("a warning")
        assert "WARNING sluice.test: a warning" in path.read_text()

    assert logs() == []


def test_a_failed_stage_leaves_its_trace_and_is_told_with_the_cause_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        log.warning("stage failed", exc_info=ValueError("deep inside"))
        raise StageFailed("job 'bids' is FAILED: stage 'a' failed: no disk", cause="no disk")

    with pytest.raises(StageFailed) as error, run_log("bids"):
        fail()

    (path,) = logs()
    assert str(error.value) == (f"job 'bids' is FAILED: stage 'a' failed (trace: {path}): no disk")
    assert path.name.startswith("bids-")
    assert "ValueError: deep inside" in path.read_text()
    assert "StageFailed: job 'bids' is FAILED" in path.read_text()
    assert capsys.readouterr().err == ""


def test_what_a_person_has_to_act_on_is_printed_too(capsys: pytest.CaptureFixture[str]) -> None:
    with run_log("bids"):
        log.error("nothing was discarded")
        logging.getLogger("py4j").error("a trace of the JVM")

    assert capsys.readouterr().err == "nothing was discarded\n"


def test_a_mistake_that_says_everything_leaves_no_log() -> None:
    with pytest.raises(ConfigurationError, match="no column 'n'"), run_log("bids"):
        raise ConfigurationError("no column 'n'")

    assert logs() == []


def test_an_error_that_nobody_expects_is_one_sentence_with_its_place() -> None:
    with pytest.raises(SluiceError) as error, run_log("bids"):
        raise KeyError("price")

    (path,) = logs()
    said = str(error.value)
    assert said.startswith(f"the run was broken off (trace: {path}): cli/test_run_log.py line ")
    assert said.endswith(": KeyError: 'price'")
    assert "Traceback (most recent call last)" in path.read_text()


def test_where_the_current_folder_takes_no_log_it_is_elsewhere() -> None:
    Path(".sluice").touch()

    with run_log("bids") as path:
        log.warning("a warning")
        assert path.is_file()

    assert path.parent.name.startswith("sluice-logs-")
