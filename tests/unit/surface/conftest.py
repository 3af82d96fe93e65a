"""Every test's stages run here, without Spark, and their segments are cached in its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.no_spark import stages_without_spark


@pytest.fixture(autouse=True)
def _without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    with stages_without_spark():
        yield
