"""A standard library's function replaced for one module, while other threads keep the real one."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest


def replace_in(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, **functions: object
) -> None:
    """Let ``module``, which says ``import time``, have these functions in its ``time``.

    ``monkeypatch.setattr("module.time.sleep", ...)`` would replace ``time.sleep`` of the whole
    process: py4j's thread sleeps once a second, and would play what a test meant for its module.
    """
    user = importlib.import_module(module)
    real: Any = getattr(user, library)
    monkeypatch.setattr(user, library, SimpleNamespace(**(vars(real) | functions)))
