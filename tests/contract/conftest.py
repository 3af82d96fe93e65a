"""Where the contract suites run: a fresh root of every kind of store, for every test.

What a store promises has a suite of its own, test_object_store.  Of all others a server of S3 sees
one case a test, its last, or one test a file, where the format of what is stored is the point;
``SLUICE_CONTRACT=all``, which is ``make contract``, plays every case there.  A store's promises are
asked of versitygw, too, where it has been built; with ``make s3`` all else that S3 sees is.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import iceberg_rest
from harness.kafka_cluster import IF_REAL, REAL, Place, in_memory
from harness.kafka_server import KafkaServer, running_kafka
from harness.s3_server import S3Server, running_s3_server
from harness.versitygw import IS_CHOSEN, MISSING, Versitygw, is_here
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.postgres_database import database  # noqa: F401 - a fixture

BUCKET = "sluice-contract"
IS_WHOLE = os.environ.get("SLUICE_CONTRACT") == "all"
WHOLE_ON_S3 = ("test_object_store.py",)
CHOOSE_THEMSELVES = ("test_appended", "test_upserted")
ONE_ON_S3 = ("test_statistics.py",)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen: dict[tuple[Path, str], pytest.Item] = {}
    spared = [one for one in items if is_at(one, "versitygw") and one.path.name not in WHOLE_ON_S3]
    for item in [] if IS_WHOLE else items:
        if not item.nodeid.startswith("tests/contract/") or item.path.name in WHOLE_ON_S3:
            continue
        if isinstance(item, pytest.Function) and is_at(item, "s3"):
            if item.originalname in CHOOSE_THEMSELVES:
                continue
            function = "" if item.path.name in ONE_ON_S3 else item.originalname
            if (before := chosen.get((item.path, function))) is not None:
                spared.append(before)
            chosen[item.path, function] = item
    if spared:
        config.hook.pytest_deselected(items=spared)
        left_out = {*spared}
        items[:] = [item for item in items if item not in left_out]


def is_at(item: pytest.Item, location: str) -> bool:
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("location") == location
    )


@pytest.fixture(scope="module")
def aws_credentials() -> Iterator[None]:
    """ministack does not check them, versitygw does, and botocore does not sign without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session", name="s3_server")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    kind = Versitygw if IS_CHOSEN else S3Server
    with running_s3_server(tmp_path_factory.mktemp("s3-server"), kind) as endpoint_url:
        create_bucket(endpoint_url)
        yield endpoint_url


@pytest.fixture(scope="session")
def versitygw_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_s3_server(tmp_path_factory.mktemp("versitygw"), Versitygw) as endpoint_url:
        create_bucket(endpoint_url)
        yield endpoint_url


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rest-catalog")
    with running_s3_server(folder, iceberg_rest.RestCatalog) as endpoint_url:
        yield endpoint_url


@pytest.fixture(scope="module")
def s3_endpoint(aws_credentials: None, s3_server: str) -> str:
    return s3_server


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    if REAL:
        yield KafkaServer(REAL, sasl_servers="")
    else:
        with running_kafka(tmp_path_factory.mktemp("kafka") / "server") as server:
            yield server


@pytest.fixture(scope="module", params=["broker", IF_REAL])
def kafka(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "real":
        yield Place(request.getfixturevalue("real_kafka").servers)
    else:
        with in_memory() as found:
            yield found


def create_bucket(endpoint_url: str, name: str = BUCKET) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - of a server of this test
    )
    client.create_bucket(Bucket=name)
    client.close()


IF_BUILT = pytest.param(
    "versitygw", marks=[pytest.mark.s3, pytest.mark.skipif(not is_here(), reason=MISSING)]
)

IF_FETCHED = pytest.mark.skipif(not iceberg_rest.is_here(), reason=iceberg_rest.MISSING)


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=pytest.mark.s3), IF_BUILT])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    unique = secrets.token_hex(6)
    match request.param:
        case "memory":
            return StoreLocation(root=f"memory://{unique}")
        case "file":
            return StoreLocation(root=f"file://{tmp_path}/not yet/there")
        case kind:
            request.getfixturevalue("aws_credentials")
            server = {"s3": "s3_server", "versitygw": "versitygw_server"}[kind]
            endpoint_url = request.getfixturevalue(server)
            return StoreLocation(root=f"s3://{BUCKET}/runs/{unique}", endpoint_url=endpoint_url)


@pytest.fixture
def store(location: StoreLocation) -> ObjectStore:
    return open_store(location)


def environment_with_sluice() -> dict[str, str]:
    """For a Python that a test starts: it finds what this one finds."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
