"""Each check of ``sluice doctor`` tells good from bad, and says what to do."""

from __future__ import annotations

import socket
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.cli.doctor import (
    Finding,
    Status,
    cache_finding,
    clock_finding,
    java_finding,
    libraries_finding,
    python_finding,
    root_findings,
    spark_server_finding,
    store_findings,
)
from sluice.errors import ConfigurationError
from sluice.extras import Requirement, requirements
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import Created, CreateResult, Listed
from sluice.store.open import StoreLocation
from tests.patching import replace_in

PYSPARK = Requirement(library="pyspark", first="4.2", end="5", extra="spark")
PANDAS = Requirement(library="pandas", first="2", end="3", extra="spark")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLUICE_CACHE_DIR", "SLUICE_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)


def statuses(findings: Iterable[Finding]) -> dict[str, str]:
    return {one.check: one.status.value for one in findings}


def test_a_python_that_is_too_old_is_a_problem() -> None:
    assert python_finding("3.11.0", ">=3.11").status is Status.OK
    assert python_finding("3.10.14", ">=3.11") == Finding(
        check="Python",
        status=Status.PROBLEM,
        message="3.10.14 is too old; install Python 3.11 or newer",
    )


def test_what_a_distribution_asks_for_is_read_extra_by_extra() -> None:
    lines = [
        "boto3>=1.36",
        'pyspark[connect]<5,>=4.2; extra == "spark"',
        'pandas<3,>=2; extra == "spark"',
        'sluice[spark]; extra == "all"',
        'apache-airflow-providers-standard; extra == "airflow"',
    ]

    assert requirements(lines) == (
        Requirement(library="boto3", first="1.36", end="", extra=""),
        Requirement(library="apache-airflow-providers-standard", first="", end="", extra="airflow"),
        PANDAS,
        PYSPARK,
    )


def test_the_installed_distribution_asks_for_what_its_errors_name() -> None:
    """``AIRFLOW`` and ``SPARK`` of ``extras`` repeat it, for what has no metadata at hand."""
    stated = {one.library: (one.first, one.end) for one in requirements()}

    assert (stated["apache-airflow"], stated["pyspark"]) == (("3.1", "4"), ("4.0", "5"))


@pytest.mark.parametrize(
    ("extra", "library", "installed", "status", "message"),
    [
        ("spark", PYSPARK, "4.2.0", Status.OK, "pyspark 4.2.0"),
        ("spark", PYSPARK, "5.0.0", Status.PROBLEM,
         "pyspark 5.0.0 is not 4.2 or newer, below 5; run: pip install --upgrade 'sluice[spark]'"),
        ("spark", PYSPARK, "4.1.9", Status.PROBLEM,
         "pyspark 4.1.9 is not 4.2 or newer, below 5; run: pip install --upgrade 'sluice[spark]'"),
        ("spark", PYSPARK, None, Status.WARNING,
         "pyspark is not installed; for 'sluice run', run: pip install 'sluice[spark]'"),
        ("kafka", PYSPARK, None, Status.OK,
         "pyspark is not installed; if a pipeline needs it, run: pip install 'sluice[kafka]'"),
        ("", PYSPARK, None, Status.PROBLEM,
         "pyspark is not installed; run: pip install 'sluice'"),
    ],
)  # fmt: skip
def test_a_library_is_compared_with_what_is_asked_for(
    extra: str, library: Requirement, installed: str | None, status: Status, message: str
) -> None:
    check = f"sluice[{extra}]" if extra else "libraries"

    found = libraries_finding(extra, {library: installed})

    assert found == Finding(check=check, status=status, message=message)


def test_a_missing_java_is_a_problem_unless_a_spark_server_is_named(tmp_path: Path) -> None:
    env = {"JAVA_HOME": str(tmp_path)}

    here, elsewhere = java_finding(env), java_finding(env | {"SLUICE_SPARK_REMOTE": "sc://h:1"})

    assert (here.status, elsewhere.status) == (Status.PROBLEM, Status.WARNING)
    assert "install Java 17" in here.message
    assert "only SLUICE_SPARK_REMOTE works without" in elsewhere.message


Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil has it


def test_a_disk_smaller_than_the_cache_may_grow_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not yet" / "there"
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(folder))
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", "2000000")
    usage = Usage(0, 0, 1_500_000)
    replace_in(monkeypatch, "sluice.cli.doctor", "shutil", disk_usage=lambda _: usage)

    small = cache_finding()
    folder.mkdir(parents=True)
    (folder / "segment").write_bytes(bytes(500_000))  # The cache's own counts as free.

    assert small.status is Status.WARNING
    assert small.message.startswith(f"{folder} has 1.5 MB free and may grow to 2.0 MB; lower ")
    assert cache_finding().status is Status.OK


def test_a_cache_that_is_no_folder_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "file" / "cache"))

    assert cache_finding().status is Status.PROBLEM


def test_a_cache_whose_size_is_no_number_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE_MAX_BYTES", "much")

    assert "SLUICE_CACHE_MAX_BYTES is 'much'" in cache_finding().message


def test_a_spark_server_that_is_not_there_is_a_problem_with_its_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    found = spark_server_finding(f"sc://127.0.0.1:{port}")

    assert found.status is Status.PROBLEM
    assert f"where SLUICE_SPARK_REMOTE sc://127.0.0.1:{port} names" in found.message


@pytest.mark.parametrize(
    ("modified_ms", "status", "said"),
    [
        (100_000, Status.OK, "agree"),
        (95_000, Status.OK, "agree"),
        (106_000, Status.OK, "agree"),
        (40_000, Status.WARNING, "the store's is 60 s behind this machine's"),
        (161_000, Status.WARNING, "the store's is 60 s ahead of this machine's"),
    ],
)
def test_clocks_that_are_far_apart_are_a_warning(
    modified_ms: int, status: Status, said: str
) -> None:
    written = Listed(key="k", size_bytes=1, modified_ms=modified_ms, version="v")

    found = clock_finding(written, 100_000, 101_000)

    assert found.status is status
    assert said in found.message


def test_a_root_in_memory_is_refused() -> None:
    (found,) = root_findings(StoreLocation(root="memory://test"))

    assert found.status is Status.PROBLEM
    assert "name a folder or a bucket in --root" in found.message


class Worse(InMemoryStore):
    """A store that fails as its attribute says."""

    fails = ""

    def put(self, key: str, body: bytes) -> None:
        if self.fails == "put":
            raise ConfigurationError("you may not put")
        super().put(key, body[:-1] if self.fails == "bytes" else body)

    def create(self, key: str, body: bytes) -> CreateResult:
        if self.fails != "create":
            return super().create(key, body)
        super().put(key, body)
        return Created()

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        if self.fails == "list":
            raise ConfigurationError("you may not list")
        if self.fails == "listing":
            return iter(())
        found = super().list(prefix, start_after=start_after)
        late_ms = 60_000 if self.fails == "clock" else 0
        return (replace(one, modified_ms=one.modified_ms - late_ms) for one in found)

    def delete(self, keys: Iterable[str]) -> None:
        if self.fails == "delete":
            raise ConfigurationError("you may not delete")
        if self.fails != "deleting":
            super().delete(keys)


@pytest.mark.parametrize(
    ("fails", "bad", "message"),
    [
        ("list", {"root": "problem"}, "you may not list"),
        ("put", {"write": "problem"}, "you may not put"),
        ("bytes", {"write": "problem"}, "gives back other bytes than were written"),
        ("listing", {"list": "problem"}, "does not list what was just written"),
        ("create", {"conditional writes": "problem"}, "ignores conditional writes"),
        ("clock", {"clock": "warning"}, "60 s behind this machine's"),
        ("delete", {"conditional writes": "problem", "delete": "problem"}, "by hand"),
        ("deleting", {"delete": "problem"}, "after it was deleted"),
    ],
)
def test_a_store_that_breaks_a_promise_is_found_out(
    fails: str, bad: dict[str, str], message: str
) -> None:
    store = Worse()
    store.fails = fails

    findings = [*store_findings(store)]

    assert {check: is_ for check, is_ in statuses(findings).items() if is_ != "ok"} == bad
    assert message in " ".join(one.message for one in findings)


def test_nothing_is_left_of_a_write_that_was_not_what_was_asked_for() -> None:
    store = Worse()
    store.fails = "bytes"

    list(store_findings(store))

    assert [*InMemoryStore.list(store, "")] == []


class NumbersWhatIsLeft(InMemoryStore):
    """Its listings go on at a number, in pages: what is deleted meanwhile shifts the rest."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        at = 0
        while page := [*super().list(prefix, start_after=start_after)][at : at + 20]:
            yield from page
            at += 20


def test_a_listing_that_lacks_objects_under_deletes_is_found_out() -> None:
    bad = [one for one in store_findings(NumbersWhatIsLeft()) if one.status is not Status.OK]

    assert [(one.check, one.status) for one in bad] == [("list under deletes", Status.PROBLEM)]
    assert "lacked objects while others were deleted" in bad[0].message
