"""Whatever begins in a store asks first whether it keeps the promise of conditional writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from harness.counting_store import CountingStore
from harness.jobs import ManualClock, a_job, a_pipeline, a_running_job
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import foreign_target, restore
from sluice.coordinator.submission import adopt, configure, submit
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.job.job import Job, open_job, verify_root
from sluice.local.savepoint_writer import SavepointWriter
from sluice.store.journal import Journal
from sluice.store.memory import InMemoryStore, named_store
from sluice.store.object_store import (
    RACERS,
    ROUNDS,
    AlreadyExists,
    Created,
    CreateResult,
    ObjectStore,
    verify_conditional_writes,
)
from sluice.store.open import PatientStore, StoreLocation, open_store, place_of
from tests.patching import replace_in
from tests.subtasks import a_savepoint, take_checkpoint

BAD = "memory://bad"


class Ignoring(InMemoryStore):
    """Every writer wins."""

    def create(self, key: str, body: bytes) -> CreateResult:
        self.put(key, body)
        return Created()


class TwoOfSixteen(InMemoryStore):
    """One after the other its writers are refused; of many at once, a second one slips through."""

    def __init__(self, name: str = "two-of-sixteen", prefix: str = "") -> None:
        super().__init__(name, prefix, objects=named_store(name)._objects)  # noqa: SLF001 - a bad one of that name
        self._begun = dict[str, int]()
        self._met = threading.Barrier(RACERS)
        self._turn = threading.Lock()

    def create(self, key: str, body: bytes) -> CreateResult:
        if "race" not in key:
            return super().create(key, body)
        self._met.wait()
        with self._turn:
            number = self._begun[key] = self._begun.get(key, 0) + 1
            if number in (1, 7):
                self.put(key, body)
                return Created()
        found = self.get(key)
        assert found is not None
        return AlreadyExists(found)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (Ignoring(), r"ignores conditional writes \(If-None-Match: \*\)"),
        (TwoOfSixteen(), "lets concurrent writers of one key replace one another"),
    ],
)
def test_a_store_in_which_two_win_is_refused_and_left_as_it_was(
    store: InMemoryStore, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        verify_conditional_writes(store, "probe", b"token")

    assert not [*store.list("")]


def test_the_probe_is_cheap() -> None:
    store = CountingStore(InMemoryStore())

    verify_conditional_writes(store, "probe", b"token")

    assert store.requests == {"create": 2 + RACERS * ROUNDS, "get": ROUNDS, "delete": 2}


def keys_below(root: str) -> list[str]:
    return [listed.key for listed in open_store(StoreLocation(root=root)).list("")]


@contextmanager
def bad_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block every store below ``BAD`` lets two writers win."""

    def opened(location: StoreLocation) -> ObjectStore:
        if not location.root.startswith(BAD):
            return open_store(location)
        return PatientStore(TwoOfSixteen("bad", location.root.removeprefix(BAD).strip("/")))

    with monkeypatch.context() as patch:
        for module in ("sluice.job.job", "sluice.store.open"):
            patch.setattr(f"{module}.open_store", opened)
        yield


def begun_by_a_submission(_: Job) -> None:
    job = a_job(root=BAD)
    submit(job, configure(job.pipeline, {}))


def begun_by_a_restore(good: Job) -> None:
    job = a_job(root=BAD)
    target = foreign_target(job, good.location.root, savepoint="mine")
    restore(job, target, configuration=configure(job.pipeline, {}))


def a_table_elsewhere(_: Job) -> None:
    a_running_job(a_pipeline(location=f"{BAD}/table"))


def a_table_named_at_a_restore(good: Job) -> None:
    job = a_job(a_pipeline(location=f"{BAD}/table"))
    target = foreign_target(job, good.location.root, savepoint="mine")
    restore(job, target, configuration=configure(job.pipeline, {}))


def a_savepoint_elsewhere(good: Job) -> None:
    SavepointWriter.from_existing_savepoint(good, "mine").write("other", root=BAD)


def asked_before_spark_starts(_: Job) -> None:
    verify_root(a_job(root=BAD))


@pytest.mark.parametrize(
    "begin",
    [
        begun_by_a_submission,
        begun_by_a_restore,
        a_table_elsewhere,
        a_table_named_at_a_restore,
        a_savepoint_elsewhere,
        asked_before_spark_starts,
    ],
)
def test_nothing_begins_in_a_store_that_lets_two_writers_win(
    begin: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = a_running_job()
    a_savepoint(good)

    with (
        bad_stores(monkeypatch),
        pytest.raises(ConfigurationError, match=r"memory://bad.* concurrent writers"),
    ):
        begin(good)

    assert not [key for key in keys_below(BAD) if "/journal/" in key or "/_manifests/" in key]


def test_a_root_that_was_copied_to_a_bad_store_goes_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its journal says which store was probed; that is another one now."""
    good = a_running_job()
    take_checkpoint(good)
    copy = open_store(StoreLocation(root=f"{BAD}/copied"))
    for listed in good.store.list(""):
        body = good.store.get(listed.key)
        assert body is not None
        copy.put(listed.key, body)

    with bad_stores(monkeypatch):
        job = a_job(root=f"{BAD}/copied")
        assert job.state().latest_completed is not None
        with pytest.raises(
            ConfigurationError, match="concurrent writers of one key replace one another"
        ):
            adopt(job)


def test_a_journal_is_probed_for_once_and_not_by_who_comes_later() -> None:
    probes: list[str] = []

    class Counted(InMemoryStore):
        def create(self, key: str, body: bytes) -> CreateResult:
            probes.extend([key] if "/probes/" in key else [])
            return super().create(key, body)

    store = CountingStore(Counted("probed-once"))
    location = StoreLocation(root="memory://probed-once")
    job = open_job(a_pipeline(), location, store=store, clock=ManualClock())
    submit(job, configure(job.pipeline, {}))
    asked = len(probes)
    take_checkpoint(job)
    take_checkpoint(open_job(a_pipeline(), location, store=store, clock=ManualClock()))

    assert asked == len(probes) == 2 + RACERS * ROUNDS
    assert {entry.place for entry in job.journal.entries(99)} == {place_of(store)}


def test_a_passing_error_of_the_probe_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One 503 must not end the start: the store that is opened is patient, also for the probe."""
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=lambda _: None)

    class SlowDown(InMemoryStore):
        lost = 3

        def create(self, key: str, body: bytes) -> CreateResult:
            if self.lost:
                self.lost -= 1
                raise StoreUnavailable("503 SlowDown")
            return super().create(key, body)

    store = SlowDown("slow-down")
    monkeypatch.setattr("sluice.store.open.named_store", lambda *_, **__: store)

    opened = open_store(StoreLocation(root="memory://slow-down"))
    verify_conditional_writes(opened, "probe", b"token")

    assert store.lost == 0


@pytest.mark.parametrize("patience_s", [0.0, 90.0])
def test_every_store_that_is_opened_at_a_place_is_as_patient_as_the_place(
    patience_s: float,
) -> None:
    place = replace(StoreLocation(root="memory://patience"), patience_s=patience_s)

    opened = [open_store(one) for one in (place, place.below("a"), place.elsewhere("memory://b"))]

    assert {isinstance(store, PatientStore) for store in opened} == {patience_s > 0}


def test_a_commit_waits_for_a_table_whose_store_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=lambda _: None)
    real, lost = InMemoryStore.create, [2]

    def create(self: InMemoryStore, key: str, body: bytes) -> CreateResult:
        if key.startswith("_manifests/") and lost[0]:
            lost[0] -= 1
            raise StoreUnavailable("503 SlowDown")
        return real(self, key, body)

    job = a_running_job(a_pipeline(location="memory://busy/table"))
    monkeypatch.setattr(InMemoryStore, "create", create)
    take_checkpoint(job)

    assert lost == [0]
    assert commit(job, job.state().completed[0].checkpoint_id).completed[0].is_committed


def test_a_listing_goes_on_behind_what_was_listed_when_a_page_is_lost() -> None:
    class Torn(InMemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator:  # type: ignore[type-arg]
            for number, found in enumerate(super().list(prefix, start_after=start_after)):
                if number == 2:
                    raise StoreUnavailable("the next page is lost")
                yield found

    store = Torn()
    for number in range(7):
        store.put(f"k/{number}", b"")

    listing = PatientStore(store, patience_s=9).list("k/", start_after="k/0")

    assert [found.key for found in listing] == [f"k/{number}" for number in range(1, 7)]


def test_a_journal_names_the_server_too() -> None:
    """Two servers may each have a bucket of one name."""
    pytest.importorskip("boto3")
    one, other = (
        open_store(StoreLocation(root="s3://bucket/jobs", endpoint_url=f"http://127.0.0.1:{port}"))
        for port in (1, 2)
    )

    assert place_of(one) == "http://127.0.0.1:1 s3://bucket/jobs"
    assert place_of(one) != place_of(other)
    assert isinstance(Journal(one, a_job().names), Journal)
