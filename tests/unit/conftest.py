"""No test of this folder starts a process: the whole tier is for every save of a file."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
from typing import NoReturn

import pytest


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a process in tests/unit: a test that starts one is for tests/processes")


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", _refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", _refuse)
    for name in ("fork", "posix_spawn", "posix_spawnp", "system"):
        monkeypatch.setattr(os, name, _refuse)
