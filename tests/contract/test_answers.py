"""An answer is not an outcome: whichever request of a checkpoint is answered wrongly, it is
published once, and nothing that a reader needs is deleted.

Each request of staging, committing and cleaning up gets each answer, before its effect or after
it.  What failed is tried again, as a task is, and a stranger reads the table past the gateway.
The check plays one answer for each request, in turn; ``make answers`` plays all of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Delta
from deltalake.exceptions import DeltaError
from pyiceberg.catalog import load_catalog

from harness.gateway import CUT, FATES, Fate, Gateway, running_gateway
from harness.jobs import RANK, a_pipeline
from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.files_table.declared import FilesTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import Committable
from sluice.core.configuration import JobStatus
from sluice.core.restoring import Latest
from sluice.declaration.places import Sink
from sluice.errors import SluiceError
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from tests.contract.conftest import BUCKET, IF_FETCHED, IS_WHOLE
from tests.contract.sink_case import JOB, SCHEMA, Row, SinkCase, rows, seen, staged_rows
from tests.examples import slow
from tests.iceberg_catalog import TABLE, properties, read_of
from tests.planted import Caught, assert_is_caught
from tests.subtasks import state_records, take_checkpoint

MOST_REQUESTS = 300  # Of one checkpoint; more would be one that never ends.
CHECKPOINTS = 6  # Of a table.
IN_TURN = [FATES[first:] + FATES[:first] for first in range(len(FATES) if IS_WHOLE else 1)]
STRIDE = 7  # Of the requests of a job's checkpoint, in the check.
OF_A_CLIENT = (400, 403, 404, 409, 412)  # Answers that say that the request was wrong.
OF_S3 = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.region": "us-east-1"}


@dataclass(frozen=True, slots=True)
class Place:
    """A table, past the gateway, and sinks of it that are behind it."""

    case: SinkCase
    behind: Callable[[], Sink]
    gateway: Gateway
    is_upserted: bool

    def stage(self, sink: Sink, checkpoint_id: int, attempt: str = "1-a") -> Committable:
        """A row; with a key also one that the next checkpoint replaces, in the same file."""
        ids = (checkpoint_id, checkpoint_id + 1)[: 1 + self.is_upserted]
        return staged_rows(sink, checkpoint_id, *ids, name=f"of {checkpoint_id}: ", attempt=attempt)

    def expected(self, newest: int) -> list[Row]:
        found = [row for one in range(1, newest + 1) for row in rows(one, name=f"of {one}: ")]
        return found + rows(newest + 1, name=f"of {newest}: ") * self.is_upserted


@pytest.fixture
def kind() -> str:
    return "delta"


@pytest.fixture
def key() -> tuple[str, ...]:
    return ("id",)


@pytest.fixture
def new_place(
    kind: str, key: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], Place]]:
    server: str = request.getfixturevalue(SERVERS.get(kind, "s3_endpoint"))
    with running_gateway(server) as gateway:

        def made(number: int) -> Place:
            folder, local = f"{BUCKET}/{tmp_path.name}/{number}", tmp_path / str(number)
            opened, read = KINDS[kind](folder, key, server, local)

            def at(endpoint: str) -> Sink:
                root = StoreLocation(f"s3://{folder}/root", endpoint_url=endpoint, patience_s=0)
                return opened(root)

            case = SinkCase(lambda: at(server), read)
            return Place(case, lambda: at(gateway.url), gateway, bool(key))

        yield made


Opened = tuple[Callable[[StoreLocation], Sink], Callable[[], list[Row]]]


def latest_rows(endpoint: str, place: str) -> pl.DataFrame:
    """The rows of the files that ``_latest`` of a files table names, by Polars."""
    client = boto3.client("s3", endpoint_url=endpoint)
    bucket, folder = place.split("/", 1)

    def body(name: str) -> bytes:
        found: bytes = client.get_object(Bucket=bucket, Key=name)["Body"].read()
        return found

    _, *files = body(f"{folder}/_latest").decode().splitlines()
    names = [one.removeprefix(f"s3://{bucket}/") for one in files]
    return pl.concat([pl.read_parquet(io.BytesIO(body(name))) for name in names])


def delta(folder: str, key: tuple[str, ...], endpoint: str, _: Path) -> Opened:
    at = f"s3://{folder}/sales"
    options = {"aws_endpoint": endpoint, "aws_allow_http": "true"}

    def read() -> list[Row]:
        found: pa.Table = Delta(at, storage_options=options).to_pyarrow_table()
        return [*found.to_pylist()]

    spec = DeltaTable(at, upsert_key=key, create=True)
    return lambda root: spec.open("sales", {}, root), read


def iceberg(folder: str, key: tuple[str, ...], endpoint: str, local: Path) -> Opened:
    catalog = properties(local, f"s3://{folder}/warehouse") | OF_S3

    def read() -> list[Row]:
        table = load_catalog("default", **catalog, **{"s3.endpoint": endpoint}).load_table(TABLE)
        found: pa.Table = table.scan().to_arrow()
        return [*found.select(SCHEMA.names).to_pylist()]

    spec = IcebergTable(TABLE, catalog, upsert_key=key, create=True)
    return lambda root: spec.open("sales", {}, root), read


def of_rest(folder: str, key: tuple[str, ...], endpoint: str, local: Path) -> Opened:
    """Only the catalog is asked past the gateway: its tables are in a folder."""
    name = f"shop.{folder.replace('/', '_')}"

    def opened(root: StoreLocation) -> Sink:
        catalog = {"type": "rest", "uri": root.endpoint_url or ""}
        spec = IcebergTable(name, catalog, upsert_key=key, create=True)
        return spec.open("sales", {}, StoreLocation(f"file://{local}/root"))

    def read() -> list[Row]:
        with load_catalog("default", type="rest", uri=endpoint) as catalog:
            return read_of(catalog, name)

    return opened, read


def files_table(folder: str, key: tuple[str, ...], endpoint: str, _: Path) -> Opened:
    def read() -> list[Row]:
        found: pa.Table = latest_rows(endpoint, f"{folder}/sales").to_arrow()
        return [*found.cast(SCHEMA).to_pylist()]

    spec = FilesTable(f"s3://{folder}/sales", upsert_key=key, latest=True)
    return lambda root: spec.open("sales", {}, root), read


KINDS: dict[str, Callable[..., Opened]] = {
    "delta": delta,
    "iceberg": iceberg,
    "iceberg-by-rest": of_rest,
    "files_table": files_table,
}
SERVERS = {"iceberg-by-rest": "rest_catalog"}  # The others' is one of S3.
BRIEF = ("iceberg-by-rest", "files_table")  # Their clients give up within a second.


def tried(attempt: Callable[[], object], fate: Fate) -> None:
    """What a task does: one attempt, whose error is one sentence, and tried again after *fate*."""
    failed: list[SluiceError] = []
    try:
        attempt()
    except SluiceError as error:
        failed.append(error)
    assert not [one for one in failed if "\n" in str(one)]
    assert fate.answer in OF_A_CLIENT or all(one.retryable for one in failed), (str(fate), failed)


def publish_behind(place: Place, checkpoint_id: int, at: int, fate: Fate, lasts: bool) -> str:
    """Publish a row, where the request *at* has *fate*; the request, empty if there is none."""
    healthy, behind = place.case.open, place.behind()
    place.gateway.fail(at, fate, lasts=lasts)
    staged: list[Committable] = []
    tried(lambda: staged.append(place.stage(behind, checkpoint_id)), fate)
    if not staged:
        staged.append(place.stage(healthy(), checkpoint_id, attempt="2-b"))
    before = checkpoint_id - 1 or None
    tried(lambda: behind.commit(JOB, checkpoint_id, before, staged), fate)
    for _ in range(2):  # A task that is tried again.
        healthy().commit(JOB, checkpoint_id, before, staged)
    tried(lambda: behind.discard_copied(staged), fate)
    failed = place.gateway.heal()
    healthy().discard_copied(staged)
    healthy().discard([one.file for one in healthy().unpublished().staged])
    return failed


@pytest.mark.s3
@pytest.mark.parametrize("fates", IN_TURN, ids=lambda fates: f"{fates[0]}")
@pytest.mark.parametrize(
    ("kind", "key", "lasts"),
    [
        pytest.param(
            kind,
            ("id",) if is_upserted else (),
            lasts,
            id=f"{kind}{'-upserted' * is_upserted}{'-lasting' * lasts}",
            marks=[IF_FETCHED] if kind in SERVERS else [],
        )
        for kind in KINDS
        if IS_WHOLE or kind not in SERVERS  # pyiceberg leaks the socket of a session that failed.
        for is_upserted in ((False, True) if IS_WHOLE else (kind != "files_table",))
        for lasts in ((False, True) if IS_WHOLE or kind in BRIEF else (False,))
    ],
)
def test_whatever_is_answered_a_checkpoint_is_there_once(
    fates: tuple[Fate, ...], lasts: bool, new_place: Callable[[int], Place]
) -> None:
    at, failed = 0, "the first"
    while failed:
        assert at < MOST_REQUESTS
        if (before := at % CHECKPOINTS) == 0:  # A table with more takes more requests, for ever.
            place = new_place(at)
        fate = fates[at % len(fates)]
        failed = publish_behind(place, before + 1, at, fate, lasts)
        assert seen(place.case) == place.expected(before + 1), (failed, str(fate))
        at += 1


@dataclass(frozen=True, slots=True)
class Root:
    """A job whose root is asked past the gateway, and behind it."""

    job: Job
    behind: Job
    gateway: Gateway

    def go_on(self, at: int, lasts: bool) -> str:
        """A checkpoint whose request *at* fails, and one after it; the request that failed."""
        fate = FATES[at % len(FATES)]
        self.gateway.fail(at, fate, lasts=lasts)
        tried(lambda: take_checkpoint(self.behind), fate)
        failed = self.gateway.heal()
        state = self.job.state()
        if state.pending or state.status is not JobStatus.RUNNING:
            restore(self.job, Latest(), only_generation=state.generation)
        take_checkpoint(self.job)
        return failed

    def absorbed(self) -> list[int]:
        base = self.job.base_metadata(self.job.state())
        assert base is not None
        return state_records(self.job, base, RANK)


def a_root(gateway: Gateway, folder: str, endpoint: str) -> Root:
    """One whose handles have asked the store what they ask it once."""
    pipeline = a_pipeline(sink=FilesTable(latest=True, changelog=True))
    root = StoreLocation(f"s3://{folder}", endpoint_url=endpoint, patience_s=0)
    job = open_job(pipeline, root)
    submit(job, configure(pipeline, {}))
    behind = open_job(pipeline, replace(root, endpoint_url=gateway.url))
    for one in (job, behind):
        take_checkpoint(one)
    return Root(job, behind, gateway)


@pytest.mark.s3
@pytest.mark.parametrize("lasts", (False, True) if IS_WHOLE else (False,))
@pytest.mark.parametrize("first", range(STRIDE) if IS_WHOLE else [0])
def test_whatever_the_root_answers_the_job_goes_on_with_exact_rows(
    first: int, lasts: bool, s3_endpoint: str, tmp_path: Path
) -> None:
    at, failed = first, "the first"
    with running_gateway(s3_endpoint) as gateway:
        while failed:
            assert at < MOST_REQUESTS
            if (at // STRIDE) % CHECKPOINTS == 0:
                folder = f"{BUCKET}/{tmp_path.name}/{at}"
                root = a_root(gateway, folder, s3_endpoint)
            failed = root.go_on(at, lasts)
            absorbed = root.absorbed()
            read = latest_rows(s3_endpoint, f"{folder}/auctions/tables/results")
            assert sorted(read["record"]) == absorbed == [*range(len(absorbed))], failed
            at += STRIDE


FAULTS = [
    Caught(
        "a version whose answer was lost is taken for another writer's, and its files are deleted",
        "connectors.delta_log:DeltaPlace.write",
        "result = self.store().create(entry_key(version), body)",
        "try: result = self.store().create(entry_key(version), body)\n"
        "    except StoreUnavailable: return False",
        test_whatever_is_answered_a_checkpoint_is_there_once,
        {"fates": (Fate(CUT, has_served=True),), "lasts": False},
        raises=(OSError, DeltaError),
    ),
]  # fmt: skip


@slow
@pytest.mark.s3
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
