"""The archive of Spark's classes is written once, by one run, and read when it is whole; temporary
files have an owner.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sluice.spark import jvm
from sluice.spark.jvm import (
    KEPT_UNUSED_S,
    WRITTEN_WITHIN_S,
    archive_option,
    owned_folder,
    temporary_option,
)

WHOLE, CUT_OFF = b"\xf0\x0b\xab\xa8 classes", b"\0\0\0\0 classes"


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path) -> None:
    """A Java and a Spark."""
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17"')
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_text("core")


def option(folder: Path, **more: str) -> str:
    env = {"XDG_CACHE_HOME": str(folder / "cache"), **more}
    return archive_option(folder / "jdk" / "bin" / "java", folder / "spark", env)


def written(folder: Path, body: bytes) -> Path:
    """Have a run write the archive; return where it will be read."""
    name, _, path = option(folder).partition("=")
    assert name == "-XX:ArchiveClassesAtExit"
    Path(path).write_bytes(body)
    return Path(path).with_suffix(".jsa")


def test_the_first_run_writes_the_archive_and_the_next_ones_read_it(tmp_path: Path) -> None:
    archive = written(tmp_path, WHOLE)

    assert option(tmp_path) == option(tmp_path) == f"-XX:SharedArchiveFile={archive}"
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_one_run_writes_at_a_time_and_one_that_was_killed_is_replaced(tmp_path: Path) -> None:
    archive = written(tmp_path, CUT_OFF)

    assert option(tmp_path) == ""
    long_ago = time.time() - WRITTEN_WITHIN_S - 1
    os.utime(archive.with_suffix(".claim"), (long_ago, long_ago))
    assert option(tmp_path) == f"-XX:ArchiveClassesAtExit={archive.with_suffix('.new')}"


def test_another_java_or_another_spark_has_an_archive_of_its_own(tmp_path: Path) -> None:
    first = written(tmp_path, WHOLE)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21"')
    second = written(tmp_path, WHOLE)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_text("another")
    third = written(tmp_path, WHOLE)

    assert len({first, second, third}) == 3


def test_archives_that_no_run_uses_are_deleted(tmp_path: Path) -> None:
    unused = tmp_path / "cache" / "sluice" / "spark-0.jsa"
    unused.parent.mkdir(parents=True)
    unused.touch()
    os.utime(unused, (0, time.time() - KEPT_UNUSED_S - 1))
    written(tmp_path, WHOLE)

    option(tmp_path)

    assert not unused.exists()


@pytest.mark.parametrize(
    "env",
    [
        {"SLUICE_CLASS_ARCHIVE": "off"},
        {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine.jsa"},
        {"JAVA_TOOL_OPTIONS": "-Xshare:off"},
        {"XDG_CACHE_HOME": "/dev/null"},
    ],
)
def test_no_run_needs_it(tmp_path: Path, env: dict[str, str]) -> None:
    assert option(tmp_path, **env) == ""


def test_a_folder_whose_name_a_command_line_would_split_has_none(tmp_path: Path) -> None:
    assert option(tmp_path, XDG_CACHE_HOME=str(tmp_path / "my cache")) == ""
    assert list((tmp_path / "my cache" / "sluice").glob("*.claim")) == []


def test_a_temporary_folder_is_deleted_with_its_block_or_by_the_next_owner(tmp_path: Path) -> None:
    (tmp_path / "mine-left" / "blocks").mkdir(parents=True)
    (tmp_path / "mine-file").touch()
    (tmp_path / "mine-link").symlink_to(tmp_path / "jdk")
    (tmp_path / "yours-left").mkdir()

    with owned_folder("mine-", tmp_path) as first, owned_folder("mine-", tmp_path) as second:
        there = {path for path in tmp_path.iterdir() if path.is_dir() and "-" in path.name}
        assert there == {first, second, tmp_path / "yours-left", tmp_path / "mine-link"}

    assert not first.exists()
    assert not second.exists()
    assert (tmp_path / "jdk" / "release").exists()


def test_a_jvm_keeps_its_temporary_files_where_its_options_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert temporary_option({"SPARK_SUBMIT_OPTS": "-Djava.io.tmpdir=/scratch"}) == ""

    monkeypatch.setattr(jvm, "_folder_until_exit", lambda _: "/tmp/sluice")
    assert temporary_option({}) == "-Djava.io.tmpdir=/tmp/sluice"
    for no_option in ("/with blanks", "/tmp/" + "long/" * 12):
        monkeypatch.setattr(jvm, "_folder_until_exit", lambda _, it=no_option: it)
        assert temporary_option({}) == ""
