"""The rules for a store in a folder only: temporary files, folders, permissions, a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.errors import ConfigurationError, StoreFull, StoreUnavailable
from sluice.protocol.keys import TEMPORARY_PREFIX
from sluice.store.folder import FileStore
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.contract.conftest import environment_with_sluice
from tests.patching import replace_in


def keys_of(store: ObjectStore) -> list[str]:
    return [listed.key for listed in store.list("")]


def test_a_folder_shows_no_temporary_file_and_keeps_no_empty_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.create("a/b/c", b"x")
    (tmp_path / "root/a/b" / f"{TEMPORARY_PREFIX}of-a-crash").write_bytes(b"half")
    (tmp_path / "root/d").mkdir()

    assert keys_of(store) == ["a/b/c"]
    store.put("e/f", b"x")
    store.delete(["e/f"])
    assert not (tmp_path / "root/e").exists()
    assert (tmp_path / "root").exists()


@pytest.mark.parametrize("folder", ["/sys/sluice", "/dev/null/sluice"])
def test_a_folder_that_cannot_be_written_is_named(folder: str) -> None:
    store = open_store(StoreLocation(root=f"file://{folder}"))

    with pytest.raises(ConfigurationError, match=f"cannot use the folder {folder}"):
        store.put("a", b"x")
    assert store.get("a") is None
    assert keys_of(store) == []


FULL_DISK_SCRIPT = """
import resource, signal, sys
from sluice.errors import StoreUnavailable
from sluice.store.folder import FileStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
store = FileStore(sys.argv[1])
try:
    store.create("a", b"x" * 5000)
except StoreUnavailable:
    print(list(store.list("")), store.get("a"))
"""


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_SCRIPT, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env=environment_with_sluice(),
    )

    assert (done.stdout, done.stderr) == ("[] None\n", "")
    assert list(tmp_path.iterdir()) == []


def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def write_and_delete(number: int) -> None:
        for _ in range(50):
            try:
                store.create(f"a/b/{number}", b"x")
            except StoreUnavailable:
                continue  # Its folder was deleted ten times running; the caller repeats.
            store.delete([f"a/b/{number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_and_delete, range(8)))

    assert keys_of(store) == []


def test_a_folder_that_another_writer_makes_and_a_deleter_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, others = os.mkdir, [tmp_path / "a"]

    def made_by_another_and_removed(path: Path, mode: int = 0o777) -> None:
        if path in others:
            others.remove(path)
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        make(path, mode)

    replace_in(monkeypatch, "pathlib", "os", mkdir=made_by_another_and_removed)
    FileStore(tmp_path).create("a/b", b"x")

    assert others == []
    assert keys_of(FileStore(tmp_path)) == ["a/b"]


def test_what_is_no_file_and_never_ends_is_not_listed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "a.log").write_bytes(b"x")
    (tmp_path / "linked.log").symlink_to(tmp_path / "a.log")

    assert [one.key for one in FileStore(tmp_path).list("")] == ["a.log", "linked.log"]


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no folder")

    with pytest.raises(ConfigurationError, match=f"cannot use the folder {tmp_path}"):
        FileStore(tmp_path).create("a/b", b"x")


def test_a_link_to_itself_is_named_with_its_own_cure(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(ConfigurationError) as refused:
        keys_of(FileStore(tmp_path))

    assert str(refused.value) == (
        f"cannot use the folder {tmp_path}: Too many levels of symbolic links at {tmp_path}/loop; "
        "the link there leads back to itself: remove it, or have it lead elsewhere"
    )


def test_what_is_closed_within_a_folder_has_a_cure_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open/closed").mkdir(parents=True)
    scan, closed = os.scandir, [tmp_path / "open/closed", tmp_path / "open"]

    def refused_at(path: Path) -> object:
        if Path(path) == closed[-1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    replace_in(monkeypatch, "sluice.store.folder", "os", scandir=refused_at)
    with pytest.raises(ConfigurationError, match="may read and write, on a file system with hard"):
        keys_of(FileStore(tmp_path / "open"))
    closed.pop()
    with pytest.raises(ConfigurationError, match="/closed; let this user use that, as the rest"):
        keys_of(FileStore(tmp_path / "open"))


def test_a_full_disk_is_said_at_once_with_its_folder_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(StoreLocation(root=f"file://{tmp_path}"))  # As patient as a task's.
    refused: list[int] = []

    def full(descriptor: int) -> None:
        refused.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        replace_in(patch, "sluice.store.folder", "os", fsync=full)
        with pytest.raises(StoreFull, match=f"{tmp_path}.*No space left on device.*free space"):
            store.put("a", b"x")

    assert len(refused) == 1
    assert keys_of(store) == []
    store.put("a", b"x")
