"""The cache holds what is right or nothing; whatever happens to its folder costs downloads only.

Its folder stays within its bound, and loses the files that were used least recently.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import polars as pl
import pyarrow as pa
import pytest

from harness.counting_store import CountingStore
from sluice.core.handles import SegmentHandle
from sluice.errors import ConfigurationError, CorruptSegment
from sluice.protocol.records import checksum
from sluice.state import cache
from sluice.state.cache import (
    BLOCK_BYTES,
    DOWNLOADS,
    CacheFolder,
    SegmentCache,
    default_folder,
    default_max_bytes,
)
from sluice.state.segments import encode_segment, open_segment, to_table
from sluice.store.folder import FileStore
from sluice.store.memory import InMemoryStore, named_store
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation
from tests.patching import replace_in

MEMORY = StoreLocation("memory://cache-tests")
NewCache = Callable[..., SegmentCache]


def a_body(number: int = 0, rows: int = 10) -> bytes:
    return encode_segment(to_table(pl.DataFrame({"n": range(number, number + rows)})))


def handle_of(body: bytes, key: str | None = None, root: str = "") -> SegmentHandle:
    digest = checksum(body)
    name = f"shared/{digest}" if key is None else key
    return SegmentHandle(key=name, size_bytes=len(body), rows=1, checksum=digest, root=root)


def stored(store: ObjectStore, body: bytes) -> SegmentHandle:
    handle = handle_of(body)
    store.put(handle.key, body)
    return handle


def rows_of(table: pa.Table) -> list[int]:
    numbers: list[int] = table.column("n").to_pylist()
    return numbers


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(InMemoryStore())


@pytest.fixture
def a_cache(store: CountingStore, tmp_path: Path) -> NewCache:
    """One per call, as every worker process has its own; all of one folder."""
    return lambda **given: SegmentCache(
        MEMORY, store, **{"folder": tmp_path / "cache", "max_bytes": 2**30, **given}
    )


def files_below(folder: Path) -> list[Path]:
    """The cached ones: the folder's own count is not below a worker's."""
    return [path for path in folder.glob("*/*") if path.is_file()]


def test_a_segment_is_downloaded_once_for_all_workers(
    store: CountingStore, a_cache: NewCache
) -> None:
    handle = stored(store, a_body())

    tables = [a_cache().open(handle) for _ in range(3)]

    assert [rows_of(table) for table in tables] == [[*range(10)]] * 3
    assert store.requests["get"] == 1


def test_what_was_uploaded_is_not_downloaded(store: CountingStore, a_cache: NewCache) -> None:
    body = a_body()
    handle = stored(store, body)

    a_cache().add(handle, body)

    assert rows_of(a_cache().open(handle)) == [*range(10)]
    assert store.requests["get"] == 0


def test_what_travels_in_the_ack_is_neither_downloaded_nor_kept(
    store: CountingStore, a_cache: NewCache, tmp_path: Path
) -> None:
    body = a_body()
    handle = replace(handle_of(body), key="", inline=body)

    opened = a_cache()
    opened.prefetch([handle])

    assert rows_of(opened.open(handle)) == [*range(10)]
    assert [rows_of(table) for table in opened.open_all([handle, handle])] == [[*range(10)]] * 2
    assert store.requests.total() == 0
    assert files_below(tmp_path) == []


def test_wrong_bytes_in_the_bucket_are_refused_and_not_kept(
    store: CountingStore, a_cache: NewCache, tmp_path: Path
) -> None:
    handle = handle_of(a_body(1))
    store.put(handle.key, a_body(2))

    for _ in range(2):
        with pytest.raises(CorruptSegment, match=handle.checksum):
            a_cache().open(handle)

    assert files_below(tmp_path) == []


def test_a_missing_segment_is_named(a_cache: NewCache) -> None:
    handle = handle_of(a_body(), key="shared/x")

    with pytest.raises(CorruptSegment, match="segment shared/x is missing from memory://"):
        a_cache().open(handle)
    with pytest.raises(CorruptSegment, match="segment shared/x is missing from memory://"):
        a_cache().open_all([handle])


def test_a_segment_of_another_root_comes_from_there(
    store: CountingStore, a_cache: NewCache
) -> None:
    body = a_body()
    named_store("elsewhere").put("savepoints/s", body)
    handle = handle_of(body, "savepoints/s", root="memory://elsewhere")

    assert rows_of(a_cache().open(handle)) == [*range(10)]
    assert a_cache().read(handle) == body
    assert store.requests.total() == 0


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.unlink(), id="gone"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-8]), id="truncated"),
        pytest.param(lambda path: path.write_bytes(b"\0" * path.stat().st_size), id="zeros"),
        pytest.param(lambda path: path.write_bytes(a_body(7, rows=50)), id="another segment"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a folder"),
    ],
)
def test_a_damaged_file_is_downloaded_again(
    store: CountingStore,
    a_cache: NewCache,
    tmp_path: Path,
    damage: Callable[[Path], object],
) -> None:
    handle = stored(store, a_body())
    a_cache().open(handle)
    [path] = files_below(tmp_path / "cache")

    damage(path)

    assert rows_of(a_cache().open(handle)) == [*range(10)]
    assert rows_of(a_cache().open(handle)) == [*range(10)]
    assert store.requests["get"] == (3 if path.is_dir() else 2)


def test_what_was_written_before_the_machine_started_is_not_trusted(
    store: CountingStore,
    a_cache: NewCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loss of power leaves names without their bytes, and even the right size of zeros."""
    handle = stored(store, a_body())
    for boot in ("first", "second", "second"):
        (tmp_path / "boot_id").write_text(f"{boot}\n")
        monkeypatch.setattr(cache, "_BOOT_ID", tmp_path / "boot_id")

        assert rows_of(a_cache().open(handle)) == [*range(10)]

    assert store.requests["get"] == 2


def test_a_file_of_another_user_is_not_trusted(
    store: CountingStore, a_cache: NewCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = stored(store, a_body())
    opened = a_cache()
    opened.open(handle)

    replace_in(monkeypatch, "sluice.state.cache", "os", getuid=lambda: -1)

    assert rows_of(opened.open(handle)) == [*range(10)]
    assert store.requests["get"] == 2


def test_a_folder_that_cannot_be_written_costs_downloads_and_nothing_else(
    store: CountingStore, a_cache: NewCache, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    body = a_body()
    handle = stored(store, body)

    a_cache().add(handle, body)
    a_cache().prefetch([handle])

    assert rows_of(a_cache().open(handle)) == [*range(10)]
    assert store.requests["get"] == 2


def test_a_mapped_table_outlives_its_file(
    store: CountingStore, a_cache: NewCache, tmp_path: Path
) -> None:
    table = a_cache().open(stored(store, a_body()))

    for path in files_below(tmp_path):
        path.unlink()

    assert rows_of(table) == [*range(10)]


def test_many_are_downloaded_side_by_side_and_each_once(
    store: CountingStore, tmp_path: Path
) -> None:
    all_at_once = Barrier(DOWNLOADS, timeout=60)

    class Meeting(CountingStore):
        def get(self, key: str) -> bytes | None:
            all_at_once.wait()
            return super().get(key)

    meeting = Meeting(store)
    handles = [stored(store, a_body(number)) for number in range(2 * DOWNLOADS)]

    tables = SegmentCache(MEMORY, meeting, folder=tmp_path).open_all([*handles, *handles])

    assert [rows_of(table)[0] for table in tables] == [*range(2 * DOWNLOADS)] * 2
    assert meeting.requests["get"] == len(handles)


def test_prefetching_downloads_only_what_is_not_here(
    store: CountingStore, a_cache: NewCache
) -> None:
    handles = [stored(store, a_body(number)) for number in range(4)]
    a_cache().open(handles[1])

    a_cache().prefetch(handles)

    assert store.requests["get"] == 4
    for number, handle in enumerate(handles):
        assert rows_of(a_cache().open(handle))[0] == number
    assert store.requests["get"] == 4


@pytest.fixture
def root(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "root")


@pytest.fixture
def a_file_cache(root: FileStore, tmp_path: Path) -> NewCache:
    return lambda: SegmentCache(
        StoreLocation(root.root), root, folder=tmp_path / "cache", max_bytes=2**30
    )


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of segments of which every byte was read."""
    keys: list[str] = []

    def watched(path: Path, *, checksum: str | None, name: str) -> pa.Table:
        if checksum is not None:
            keys.append(name)
        return open_segment(path, checksum=checksum, name=name)

    monkeypatch.setattr(cache, "open_segment", watched)
    return keys


def test_a_file_of_the_root_is_mapped_where_it_is_and_verified_once(
    root: FileStore, a_file_cache: NewCache, verified: list[str], tmp_path: Path
) -> None:
    handle = stored(root, a_body())

    tables = [a_file_cache().open(handle) for _ in range(3)]

    assert [rows_of(table) for table in tables] == [[*range(10)]] * 3
    assert verified == [handle.key]
    assert [path.stat().st_size for path in files_below(tmp_path / "cache")] == [0]


def test_what_this_machine_uploaded_to_a_folder_is_not_verified_again(
    root: FileStore, a_file_cache: NewCache, verified: list[str]
) -> None:
    body = a_body()
    handle = stored(root, body)

    a_file_cache().add(handle, body)

    assert rows_of(a_file_cache().open(handle)) == [*range(10)]
    assert verified == []


def test_files_of_the_root_are_verified_side_by_side_before_they_are_needed(
    root: FileStore, a_file_cache: NewCache, verified: list[str]
) -> None:
    handles = [stored(root, a_body(number)) for number in range(3)]

    a_file_cache().prefetch(handles)
    a_file_cache().prefetch(handles)

    assert sorted(verified) == sorted(handle.key for handle in handles)


def test_equal_bytes_in_another_file_are_verified_too(
    root: FileStore, a_file_cache: NewCache, verified: list[str]
) -> None:
    handle = stored(root, a_body())
    copy = replace(handle, key="copy")
    root.put("copy", a_body())

    for each in (handle, copy, handle, copy):
        a_file_cache().open(each)

    assert verified == [handle.key, "copy"]


def test_a_file_of_the_root_that_changed_after_it_was_verified_is_refused(
    root: FileStore, a_file_cache: NewCache
) -> None:
    handle = stored(root, a_body(rows=1_000))
    a_file_cache().open(handle)
    path = root.path_of(handle.key)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1  # Still an Arrow file.

    path.write_bytes(body)
    os.utime(path, ns=(0, 1))  # A clock may not have ticked since the file was written.

    with pytest.raises(CorruptSegment, match=f"its ack recorded checksum {handle.checksum}"):
        a_file_cache().open(handle)


@pytest.mark.parametrize("length", [0, 9, -8])
def test_a_truncated_file_of_the_root_is_refused(
    root: FileStore, a_file_cache: NewCache, length: int
) -> None:
    handle = stored(root, a_body())
    path = root.path_of(handle.key)

    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(CorruptSegment, match=f"segment {handle.key} is corrupt"):
        a_file_cache().open(handle)


def test_a_missing_file_of_the_root_is_named(root: FileStore, a_file_cache: NewCache) -> None:
    handle = stored(root, a_body())
    a_file_cache().open(handle)

    root.delete([handle.key])

    with pytest.raises(CorruptSegment, match=f"segment {handle.key} is missing from file://"):
        a_file_cache().open(handle)


def test_another_root_may_be_a_folder(
    store: CountingStore,
    a_cache: NewCache,
    root: FileStore,
    verified: list[str],
    tmp_path: Path,
) -> None:
    handle = replace(stored(root, a_body()), root=root.root)

    for _ in range(2):
        assert rows_of(a_cache().open(handle)) == [*range(10)]

    assert verified == [handle.key]
    assert store.requests.total() == 0


def test_the_environment_names_the_folder_and_its_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", "1000000")

    assert default_folder() == tmp_path
    assert default_max_bytes() == 1_000_000


def test_a_bound_of_nothing_keeps_nothing(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", "0")
    handle = stored(store, a_body())
    bounded = SegmentCache(MEMORY, store, folder=tmp_path)

    assert rows_of(bounded.open(handle)) == rows_of(bounded.open(handle)) == [*range(10)]
    assert store.requests["get"] == 2
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("value", ["8 GiB", "-1", "1e9"])
def test_a_bound_that_is_no_number_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", value)

    with pytest.raises(ConfigurationError, match=f"SLUICE_CACHE_MAX_BYTES is '{value}'; write a"):
        SegmentCache(MEMORY)


def a_file(folder: CacheFolder, name: str, *, used_at: int, blocks: int = 1) -> Path:
    folder.keep(name, b"x" * (blocks * BLOCK_BYTES))
    path = folder.path(name)
    os.utime(path, (used_at, used_at))
    return path


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 8 * BLOCK_BYTES)
    files = [a_file(folder, f"f{n}", used_at=1_000 + n) for n in range(8)]

    folder.use("f0")  # It is the most recent now.
    folder.keep("new", b"x" * BLOCK_BYTES)

    assert [path.name for path in files if path.exists()] == ["f0", "f3", "f4", "f5", "f6", "f7"]
    assert folder.path("new").exists()


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
