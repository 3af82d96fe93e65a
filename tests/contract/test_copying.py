"""Objects are copied once their bytes have been checked, in S3 by the server itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.jobs import a_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.savepoints import copy_savepoint
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType
from sluice.errors import CorruptSegment
from sluice.protocol.records import checksum, checksum_of
from sluice.store import s3
from sluice.store.object_store import ObjectStore
from sluice.store.open import PatientStore, StoreLocation, open_store
from sluice.store.uploads import copy_object
from tests.contract.conftest import BUCKET
from tests.contract.s3_stub import s3_stub
from tests.subtasks import a_savepoint, acknowledge

BODY = b"0123456789"


class Checked:
    """A check that knows the bytes it has seen, and may refuse them, or act between."""

    def __init__(self, *, refuses: bool = False, then: Callable[[], object] | None = None) -> None:
        self.seen: list[bytes] = []
        self._refuses, self._then = refuses, then

    def __call__(self, pieces: Iterable[bytes]) -> None:
        self.seen.append(b"".join(pieces))
        if self._refuses:
            raise CorruptSegment("these are other bytes")
        if self._then is not None:
            then, self._then = self._then, None
            then()


@contextmanager
def asked(store: ObjectStore) -> Iterator[list[str]]:
    """The operations that the server of *store* is asked for within the block."""
    operations: list[str] = []

    def note(model: Any, **_: object) -> None:
        operations.append(model.name)

    assert isinstance(store, s3.S3Store)
    events = store._clients.repeating.meta.events  # noqa: SLF001 - what is sent, as it is sent
    events.register("before-call.s3", note)
    try:
        yield operations
    finally:
        events.unregister("before-call.s3", note)


@pytest.fixture
def in_s3(s3_endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    root = f"s3://{BUCKET}/copying/{checksum(request.node.name.encode())}"
    return open_store(StoreLocation(root=root, endpoint_url=s3_endpoint, patience_s=0))


def test_what_was_checked_is_copied_within_a_root_and_below_another(
    location: StoreLocation, store: ObjectStore
) -> None:
    store.put("a", BODY)
    below = open_store(location.below("copies"))
    check = Checked()

    assert copy_object(store, "a", store, "b", check)
    assert copy_object(store, "a", below, "a", check)
    assert copy_object(store, "a", store, "b", check)  # Again.

    assert store.get("b") == below.get("a") == BODY
    assert check.seen == [BODY] * 3


def test_what_is_absent_or_refused_is_not_copied(store: ObjectStore) -> None:
    store.put("a", BODY)

    assert not copy_object(store, "absent", store, "b", Checked())
    with pytest.raises(CorruptSegment):
        copy_object(store, "a", store, "b", Checked(refuses=True))
    assert store.get("b") is None


@pytest.mark.s3
def test_an_s3_server_copies_without_being_sent_the_bytes(in_s3: ObjectStore) -> None:
    in_s3.put("a", BODY)

    with asked(in_s3) as operations:
        assert copy_object(in_s3, "a", PatientStore(in_s3), "b", Checked())

    assert operations == ["GetObject", "CopyObject"]
    assert in_s3.get("b") == BODY


@pytest.mark.s3
def test_bytes_that_change_behind_the_check_are_checked_again(in_s3: ObjectStore) -> None:
    in_s3.put("a", BODY)
    check = Checked(then=lambda: in_s3.put("a", b"damaged"))

    assert copy_object(in_s3, "a", in_s3, "b", check)

    assert check.seen == [BODY, b"damaged"]
    assert in_s3.get("b") == b"damaged"  # The second check passed it.


@pytest.mark.s3
def test_a_larger_object_than_one_request_copies_is_copied_in_parts(
    in_s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MAX_COPY_BYTES", 8 * 1024**2)
    body = bytes(range(256)) * 4 * 9 * 1024
    in_s3.put("a", body)
    digests: list[str] = []

    with asked(in_s3) as operations:
        assert copy_object(in_s3, "a", in_s3, "b", lambda p: digests.append(checksum_of(p)))

    assert in_s3.get("b") == body
    assert digests == [checksum(body)]
    assert operations.count("UploadPartCopy") == 2
    assert "PutObject" not in operations


@pytest.mark.s3
def test_a_server_that_ignores_the_wish_to_copy_is_sent_the_bytes(aws_credentials: None) -> None:
    with s3_stub() as endpoint_url:
        store = open_store(StoreLocation(root="s3://bucket/root", endpoint_url=endpoint_url))
        store.put("a", BODY)

        assert copy_object(store, "a", store, "b", Checked())
        assert store.get("b") == BODY


@pytest.mark.s3
def test_a_savepoint_in_s3_is_copied_by_the_server_and_its_damage_fails_the_checkpoint(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    job = a_job(root=f"s3://{BUCKET}/savepoints-of-jobs")
    submit(job, configure(job.pipeline, {}))
    store = job.store.behind if isinstance(job.store, PatientStore) else job.store

    with asked(store) as operations:
        a_savepoint(job, "whole")
        copy_savepoint(job, "whole", f"s3://{BUCKET}/backups")
    copied = {file.key for file in job.savepoint_metadata("whole").files}
    plan = trigger_one(
        job, type=CheckpointType.SAVEPOINT, savepoint_name="broken", is_periodic=False
    )
    damaged = acknowledge(job, plan)[-1].state[-1].segment
    job.store.put(damaged.key, b"damaged")

    assert operations.count("CopyObject") >= 2 * len(copied) > 0
    with pytest.raises(CorruptSegment, match=f"{damaged.key} is damaged"):
        finalize(job, plan.checkpoint_id)
