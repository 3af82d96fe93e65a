"""The cache's folder stays within its bound, and forgets what was used least recently."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.state import cache
from sluice.state.cache import BLOCK_BYTES, CacheFolder


def files_below(folder: Path) -> list[Path]:
    """The cached ones: the folder's own count is not below a worker's."""
    return [path for path in folder.glob("*/*") if path.is_file()]


def a_file(folder: CacheFolder, name: str, *, used_at: int, blocks: int = 1) -> Path:
    folder.keep(name, b"x" * (blocks * BLOCK_BYTES))
    path = folder.path(name)
    os.utime(path, (used_at, used_at))
    return path


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 8 * BLOCK_BYTES)
    files = [a_file(folder, f"f{n}", used_at=1_000 + n) for n in range(8)]
    os.utime(files[0], (2_000, 2_000))

    folder.keep("new", b"x" * BLOCK_BYTES)

    assert [path.name for path in files if path.exists()] == ["f0", "f3", "f4", "f5", "f6", "f7"]
    assert folder.path("new").exists()


def test_using_a_file_makes_it_recent(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 8 * BLOCK_BYTES)
    files = [a_file(folder, f"f{n}", used_at=1_000 + n) for n in range(8)]

    folder.use("f0")
    folder.keep("new", b"x")

    assert files[0].exists()
    assert not files[1].exists()


def test_files_of_older_boots_and_temporary_ones_of_the_dead_go_as_well(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 4 * BLOCK_BYTES)
    for name in ("0-older-boot/f", "1000-older-boot/tmpabc"):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(b"x" * BLOCK_BYTES)
        os.utime(path, (1, 1))

    folder.keep("new", b"x" * (3 * BLOCK_BYTES))

    assert [path.name for path in files_below(tmp_path)] == ["new"]


def test_a_file_that_never_fits_is_not_kept(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 4 * BLOCK_BYTES)
    path = a_file(folder, "kept", used_at=1, blocks=2)

    folder.keep("large", b"x" * (5 * BLOCK_BYTES))

    assert path.exists()
    assert not folder.path("large").exists()


def test_a_folder_far_below_its_bound_is_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    files = cache._files  # noqa: SLF001 - its looks are counted

    def look(folder: Path) -> Iterator[tuple[int, int, Path]]:
        looks.append(folder)
        return files(folder)

    monkeypatch.setattr(cache, "_files", look)

    for number in range(100):  # As many workers as files: what they add together counts.
        CacheFolder(tmp_path, 80 * BLOCK_BYTES).keep(f"f{number}", b"x")

    assert len(files_below(tmp_path)) <= 80
    assert len(looks) == 3  # The first finds nothing counted; then at the 81st and the 92nd file.


def test_workers_that_add_at_the_same_time_keep_the_bound_together(tmp_path: Path) -> None:
    workers, bound = 8, 64

    def add(worker: int) -> None:
        for number in range(40):
            CacheFolder(tmp_path, bound * BLOCK_BYTES).keep(f"f{worker}-{number}", b"x")

    with ThreadPoolExecutor(workers) as pool:
        [*pool.map(add, range(workers))]

    # A look misses the file that each of the others has counted and not yet written.
    assert bound // 2 < len(files_below(tmp_path)) < bound + workers


def test_what_is_added_while_another_looks_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, looking = 16, threading.Event()
    files = cache._files  # noqa: SLF001 - one look lasts longer than all that others add

    def look(folder: Path) -> Iterator[tuple[int, int, Path]]:
        found = [*files(folder)]
        if len(found) >= bound and not looking.is_set():
            looking.set()
            time.sleep(0.2)
        yield from found

    def add(name: str) -> None:
        CacheFolder(tmp_path, bound * BLOCK_BYTES).keep(name, b"x")

    monkeypatch.setattr(cache, "_files", look)
    for number in range(bound):
        add(f"before{number}")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(add, "slow")
        assert looking.wait(60)
        for number in range(bound + 2):  # The last two after the last look of their own.
            add(f"meanwhile{number}")
        slow.result()
    for number in range(bound):
        add(f"after{number}")
        assert len(files_below(tmp_path)) <= bound


def test_a_lost_count_is_made_anew(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 8 * BLOCK_BYTES)
    for number in range(8):
        a_file(folder, f"f{number}", used_at=number)

    (tmp_path / "blocks").unlink()
    folder.keep("new", b"x")

    assert len(files_below(tmp_path)) == 7


def test_a_full_disk_leaves_no_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(tmp_path, 2**30)
    folder.keep("first", b"x")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    folder.keep("second", b"x")

    assert [path.name for path in files_below(tmp_path)] == ["first"]
