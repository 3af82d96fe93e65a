"""One Spark for all tests of this folder: the one that a local run starts by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

NOT_ALL = ("test_rows.py", "test_remote_run.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/testing/") and item.path.name not in NOT_ALL:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
