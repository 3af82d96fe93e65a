"""What `import sluice` has: its public names, and libraries that may be missing or too old."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import sluice
from sluice.connectors.avro import decompressed
from sluice.connectors.delta_log import DeltaPlace
from sluice.connectors.iceberg.catalog import CatalogTable
from sluice.connectors.kafka.cluster import Cluster
from sluice.connectors.kafka.formats import AvroValues, ProtobufValues
from sluice.connectors.postgres.server import Server
from sluice.errors import ConfigurationError
from sluice.extras import AIRFLOW, SPARK, require_installed
from sluice.spark.session import local_session, named_session
from sluice.store.open import StoreLocation
from sluice.surface.monitoring import metrics_text


def a_consumer() -> object:
    with Cluster("host:9092").consumer() as consumer:
        return consumer


def a_session() -> object:
    with Server("postgresql://host/db", "source public.orders").session() as session:
        return session


def a_remote_spark() -> object:
    with named_session("sc://host:15002", "orders") as session:
        return session


def a_spark() -> object:
    with local_session() as spark:
        return spark


AVRO = AvroValues(
    '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}', None
)

# The opened object: the missing library, the feature that needs it, and the extra that has it.
OPENED: dict[str, tuple[Callable[[], object], str, str, str]] = {
    "a Kafka consumer": (a_consumer, "confluent_kafka", "Kafka", "kafka"),
    "a Kafka producer": (Cluster("host:9092").producer, "confluent_kafka", "Kafka", "kafka"),
    "values in Avro": (partial(AVRO.decode, [b"\x02"]), "fastavro", "Avro", "avro"),
    "values in Protobuf": (
        ProtobufValues("a.B", b"x", framed=False).fields, "google.protobuf", "Protobuf", "kafka"
    ),
    "PostgreSQL": (a_session, "psycopg", "source public.orders", "postgres"),
    "Iceberg": (
        CatalogTable("shop.orders", ()).find, "pyiceberg", "the Iceberg table shop.orders",
        "iceberg",
    ),
    "Delta Lake": (
        DeltaPlace(StoreLocation("s3://lake/orders")).load, "deltalake",
        "the Delta table s3://lake/orders", "delta",
    ),
    "an Avro file in zstandard": (
        partial(decompressed, "zstandard", b"x", "it"), "zstandard",
        "Avro compressed with zstandard", "avro",
    ),
    "metrics": (
        partial(metrics_text, ()), "prometheus_client", "the page of metrics", "metrics"
    ),
    "a Spark of one's own": (a_spark, "pyspark", "a Spark of one's own", "spark"),
    "Spark Connect": (a_remote_spark, "pyspark", "the Spark Connect client", "spark"),
}  # fmt: skip


@pytest.mark.parametrize("what", OPENED)
def test_a_missing_library_is_one_sentence_that_names_the_extra(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, module, who, extra = OPENED[what]
    monkeypatch.setitem(sys.modules, module, None)  # Its import fails now, as if it were not there.

    with pytest.raises(ConfigurationError) as error:
        opened()

    assert str(error.value) == (
        f"{who} needs the library {module}, which is not installed; run: "
        f"pip install 'sluice[{extra}]'"
    )


def test_a_library_whose_parent_is_missing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("airflow.providers.apache")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "airflow.providers.apache", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'sluice\[submit\]'"):
        require_installed("airflow.providers.apache.spark", who="Submit")


@pytest.mark.parametrize("version", ["4.0", "4.0.2", "4.1.4", "4.3.0", "4.10.2.dev1", "4.99"])
def test_a_supported_version_passes(version: str) -> None:
    SPARK.check(version)


@pytest.mark.parametrize("version", ["3.9.9", "3.5.1", "5.0.0", "5", "what"])
def test_another_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        SPARK.check(version, " at sc://host:15002")

    assert str(error.value) == (
        f"Spark {version} at sc://host:15002 is not supported; Sluice runs on Spark 4.0 or newer, "
        "below 5"
    )


def test_an_airflow_that_is_too_old_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Airflow 2\.11\.0 is not supported; Sluice runs"):
        AIRFLOW.check("2.11.0")


def test_a_pyspark_that_is_too_old_is_refused_before_a_jvm_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.1")

    with pytest.raises(ConfigurationError, match=r"Spark 3\.5\.1 \(the library pyspark\) is not"):
        a_spark()


def test_every_public_name_is_there_and_known_to_type_checkers() -> None:
    tree = ast.parse(Path(sluice.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert sorted(typed) == sorted(sluice.__all__)
    assert all(getattr(sluice, name) is not None for name in sluice.__all__)
    assert set(sluice.__all__) <= set(dir(sluice))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sluice' has no attribute 'nobody'"):
        _ = sluice.nobody
