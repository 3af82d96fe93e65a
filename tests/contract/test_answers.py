"""An answer is not an outcome: whichever request of a checkpoint is answered wrongly, it is
published once, and nothing that a reader needs is deleted.

Each request of staging, committing and cleaning up gets each answer, before its effect or after
it.  What failed is tried again, as a task is, and a stranger reads the table past the gateway.
The check plays one answer for each request, in turn; ``make contract`` plays all of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Delta
from pyiceberg.catalog import load_catalog

from harness.gateway import FATES, Fate, Gateway, running_gateway
from sluice.connectors.delta.declared_sink import DeltaTable
from sluice.connectors.files_table.declared import FilesTable
from sluice.connectors.iceberg.declared_sink import IcebergTable
from sluice.declaration.places import Sink
from sluice.errors import SluiceError
from sluice.store.open import StoreLocation
from tests.contract.conftest import BUCKET, IS_WHOLE
from tests.contract.sink_case import JOB, SCHEMA, Row, SinkCase, rows, seen, staged_rows
from tests.iceberg_catalog import TABLE, properties

MOST_REQUESTS = 300  # Of one checkpoint; more would be one that never ends.
CHECKPOINTS = 6  # Of a table.
OF_S3 = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.region": "us-east-1"}


@dataclass(frozen=True, slots=True)
class Place:
    """A table, past the gateway, and sinks of it that are behind it."""

    case: SinkCase
    behind: Callable[[], Sink]
    gateway: Gateway


@pytest.fixture
def new_place(
    kind: str, key: tuple[str, ...], s3_endpoint: str, tmp_path: Path
) -> Iterator[Callable[[int], Place]]:
    with running_gateway(s3_endpoint) as gateway:

        def made(number: int) -> Place:
            folder, local = f"{BUCKET}/{tmp_path.name}/{number}", tmp_path / str(number)
            opened, read = KINDS[kind](folder, key, s3_endpoint, local)

            def at(endpoint: str) -> Sink:
                root = StoreLocation(f"s3://{folder}/root", endpoint_url=endpoint, patience_s=0)
                return opened(root)

            return Place(SinkCase(lambda: at(s3_endpoint), read), lambda: at(gateway.url), gateway)

        yield made


Opened = tuple[Callable[[StoreLocation], Sink], Callable[[], list[Row]]]


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


def files_table(folder: str, key: tuple[str, ...], endpoint: str, _: Path) -> Opened:
    """Polars reads the files that ``_latest`` names."""
    client = boto3.client("s3", endpoint_url=endpoint)
    bucket, below = f"{folder}/sales".split("/", 1)

    def body(name: str) -> bytes:
        found: bytes = client.get_object(Bucket=bucket, Key=name)["Body"].read()
        return found

    def read() -> list[Row]:
        _, *files = body(f"{below}/_latest").decode().splitlines()
        parts = [
            pl.read_parquet(io.BytesIO(body(one.removeprefix(f"s3://{bucket}/")))) for one in files
        ]
        return pl.concat(parts).to_arrow().cast(SCHEMA).to_pylist() if parts else []

    spec = FilesTable(f"s3://{folder}/sales", upsert_key=key, latest=True)
    return lambda root: spec.open("sales", {}, root), read


KINDS: dict[str, Callable[..., Opened]] = {
    "delta": delta,
    "iceberg": iceberg,
    "files_table": files_table,
}


def tried(attempt: Callable[[], object]) -> None:
    """What a task does: one attempt, whose error is one sentence."""
    said = ""
    try:
        attempt()
    except SluiceError as error:
        said = str(error)
    assert "\n" not in said


def publish_behind(place: Place, checkpoint_id: int, at: int, fate: Fate) -> str:
    """Publish a row, where the request *at* has *fate*; the request, empty if there is none."""
    healthy, behind = place.case.open, place.behind()
    place.gateway.fail(at, fate)
    staged = []
    tried(lambda: staged.append(staged_rows(behind, checkpoint_id, checkpoint_id)))
    if not staged:
        staged.append(staged_rows(healthy(), checkpoint_id, checkpoint_id, attempt="2-b"))
    before = checkpoint_id - 1 or None
    tried(lambda: behind.commit(JOB, checkpoint_id, before, staged))
    for _ in range(2):  # A task that is tried again.
        healthy().commit(JOB, checkpoint_id, before, staged)
    tried(lambda: behind.discard_copied(staged))
    failed = place.gateway.heal()
    healthy().discard_copied(staged)
    healthy().discard([one.file for one in healthy().unpublished().staged])
    return failed


@pytest.mark.s3
@pytest.mark.parametrize("first", range(len(FATES) if IS_WHOLE else 1))
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(kind, ("id",) if is_upserted else (), id=f"{kind}{'-upserted' * is_upserted}")
        for kind in KINDS
        for is_upserted in ((False, True) if IS_WHOLE else (kind != "files_table",))
    ],
)
def test_whatever_is_answered_a_checkpoint_is_there_once(
    first: int, new_place: Callable[[int], Place]
) -> None:
    at, failed = 0, "the first"
    while failed:
        assert at < MOST_REQUESTS
        if (before := at % CHECKPOINTS) == 0:  # A table with more takes more requests, for ever.
            place = new_place(at)
        fate = FATES[(first + at) % len(FATES)]
        failed = publish_behind(place, before + 1, at, fate)
        assert seen(place.case) == rows(*range(1, before + 2)), (failed, str(fate))
        at += 1
