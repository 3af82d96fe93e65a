"""A job in memory, and the command line in this process, to which its pipeline is declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import a_job, a_pipeline, a_running_job
from harness.no_spark import stages_without_spark
from sluice.cli.main import main
from sluice.job.job import Job


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one sentence of a mistake."""
        assert self.code == 1
        (sentence,) = self.err.splitlines()
        return sentence


Sluice = Callable[..., Answer]


@pytest.fixture
def job() -> Job:
    return a_running_job()


@pytest.fixture
def new_job() -> Job:
    return a_job()


@pytest.fixture
def without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages run here, and their segments are cached in the test's own folder."""
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    with stages_without_spark():
        yield


@pytest.fixture
def sluice(job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sluice:
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": a_pipeline()}.__getitem__)
    monkeypatch.setattr("sluice.cli.show.load_pipeline", {"auctions": a_pipeline()}.__getitem__)
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(code=int(ended.value.code or 0), out=out, err=err)

    return run
