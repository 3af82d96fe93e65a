"""Kafka as a declaration: what it opens, what it refuses, and that it shows no password."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.cluster import Cluster
from sluice.connectors.kafka.declared import (
    Avro,
    Json,
    Kafka,
    KafkaTopic,
    Protobuf,
    Raw,
    SchemaRegistry,
)
from sluice.declaration.params import Env, Param, env, param
from sluice.declaration.places import TextDecoding
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation

HERE = "127.0.0.1:9092"
ROOT = StoreLocation(root="memory://kafka-spec")


def test_a_declaration_travels_and_resolves_its_parameters() -> None:
    registry = SchemaRegistry(param("registry"), password=env("NO_SUCH"))
    spec = Kafka(
        param("kafka"), param("topics"), Avro("{}", registry), config={"client.id": param("me")}
    )
    assert [one.name for one in spec.params] == ["kafka", "topics", "me", "registry"]
    given = {"kafka": HERE, "topics": "a, b", "registry": "http://r", "me": "x"}
    source: Any = pickle.loads(pickle.dumps(spec)).open(given, None)  # noqa: S301

    assert source.topics == ("a", "b")
    assert source.cluster == Cluster(HERE, (("client.id", "x"),))
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301


def test_json_is_decoded_by_spark_beside_what_kafka_says() -> None:
    source = Kafka(HERE, "t", Json("id bigint"), columns=("key", "offset as o")).open({}, None)
    assert source.decoding == TextDecoding(
        format="json", schema="id bigint", column="value", keeps=("key", "o", "tombstone")
    )
    assert source.schema().names == ["key", "o", "tombstone", "value", "_record"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": "first"}, "start='first' of Kafka; use 'earliest'"),
        ({"start": {"u/0": 1}}, "start= names partition 'u/0'; partitions of t are called \"t/0\""),
        ({"on_expired": "ignore"}, "use 'fail' or 'skip'"),
        ({"key": "json"}, "use 'binary' or 'string'"),
        ({"columns": ("offsets",)}, "columns= names 'offsets'"),
        ({"topics": ()}, "name each topic once"),
        ({"topics": "t,t"}, "name each topic once"),
        ({"bootstrap_servers": ""}, "bootstrap_servers is empty"),
        ({"config": {"group.id": "g"}}, "'group.id' is set by sluice"),
        ({"config": {"isolation.level": "read_uncommitted"}}, "is set by sluice"),
        ({"value": Json(" ")}, "needs a schema"),
        ({"value": Protobuf("M", descriptors="/no/such")}, "cannot be read: No such file"),
    ],
)
def test_what_a_person_got_wrong_is_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Kafka(**{"bootstrap_servers": HERE, "topics": "t", **options}).open({}, None)
    assert problem in str(caught.value)


def test_a_property_that_librdkafka_does_not_know_is_named() -> None:
    source: Any = Kafka(HERE, "t", config={"fetch.speed": "high"}).open({}, None)
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "fetch\.speed"'):
        source.readable()


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-hush")
    config: dict[str, str | Param | Env] = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "hush-hush",
        "sasl.username": "me",
        "sasl.password": env("KAFKA_PASSWORD"),
        "ssl.key.password": "open-secret",
    }
    spec = Kafka(HERE, "t", config=config, timeout_s=0.2)
    source: Any = spec.open({}, None)
    with pytest.raises(ConfigurationError) as caught:
        source.readable()

    shown = f"{caught.value} {spec!r} {source!r} {KafkaTopic(HERE, 't', config=config)!r}"
    assert "hush-hush" not in shown + caplog.text
    assert "open-secret" not in shown
    assert b"hush-hush" not in pickle.dumps(source).replace(
        b"sasl.mechanism\x94\x8c\thush-hush", b""
    )


def test_a_sinks_transactional_id_is_its_own_and_stays() -> None:
    def name(uid: str, root: str, **options: Any) -> str:
        sink: Any = KafkaTopic(HERE, "t", **options).open(uid, {}, StoreLocation(root=root))
        group: str = sink.target.topic.group
        return group

    first = name("alerts", "memory://shop/a")
    assert first == name("alerts", "memory://shop/a")
    assert len({first, name("other", "memory://shop/a"), name("alerts", "memory://shop/b")}) == 3
    assert first.startswith("sluice-alerts-")
    assert name("alerts", "memory://shop/a", transactional_id="mine") == "mine"


def test_a_sink_that_upserts_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs key="):
        KafkaTopic(HERE, "t", upsert=True)
    assert KafkaTopic(HERE, "t", key="id", upsert=True).upsert_key == ("id",)
    assert KafkaTopic(HERE, "t", key="id").upsert_key == ()
    with pytest.raises(ConfigurationError, match="topic= of the Kafka sink 'alerts' is empty"):
        KafkaTopic(HERE, param("t", required=False)).open("alerts", {}, ROOT)


def test_raw_is_the_default() -> None:
    assert Kafka(HERE, "t").value == Raw()


@pytest.mark.parametrize(
    ("schema", "columns", "words"),
    [
        ("n int, Key string", ("key",), "the values have a column 'key', and so has Kafka"),
        ("n int, tombstone string", (), "the values have a column 'tombstone'"),
        ("n int, `_Malformed` string", (), "has a column '_Malformed', a name that sluice gives"),
        ("n int", ("key as _raw",), "has a column '_raw', a name that sluice gives"),
    ],
)
def test_json_with_a_name_that_is_taken_is_refused(
    schema: str, columns: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Kafka("h:9092", "t", Json(schema), columns=columns).open({}, None)
