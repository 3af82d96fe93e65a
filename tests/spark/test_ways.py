"""One suite for every source and every way of its rows: what is read is what was written.

Types at their extremes under hostile names, cut at any row, read once more after a restore: without
a key, keyed through Spark's JVM and past it, from the source and from the stream of a stage.
``SLUICE_WAYS=200`` plays so many drawn cases a place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from harness.postgres_database import Database, running_postgres
from tests.kafka_broker import Broker, running_broker
from tests.spark.ways.arrow_places import Iceberg, ParquetFolder
from tests.spark.ways.kafka_places import AvroTopic, JsonTopic, ProtobufTopic, RawTopic
from tests.spark.ways.play import Case, Place, play
from tests.spark.ways.postgres_place import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRAWN = int(os.environ.get("SLUICE_WAYS", "0"))
SEEDS = range(DRAWN or 1)
PLACES = ("parquet", "iceberg", "postgres", "json", "avro", "protobuf", "raw")
# Their columns may have any names; what the other formats say of names is checked by themselves.
WITH_ANY_NAME = (ParquetFolder, Iceberg, Postgres, JsonTopic)
CUT = PLACES if DRAWN else ("parquet", "postgres")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as found:
        yield found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "parquet":
            return ParquetFolder(tmp_path)
        case "iceberg":
            return Iceberg(tmp_path)
        case "postgres":
            return Postgres(request.getfixturevalue("database"))
        case "protobuf":
            return ProtobufTopic(request.getfixturevalue("broker"), tmp_path)
        case kind:
            topics: dict[str, Callable[[Broker], Place]] = {
                "avro": AvroTopic,
                "json": JsonTopic,
                "raw": RawTopic,
            }
            return topics[kind](request.getfixturevalue("broker"))


def test_every_value_of_every_type_is_the_same_on_every_way(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    kinds = place.kinds
    if isinstance(place, WITH_ANY_NAME):
        kinds = dict(zip([*place.names, *kinds], kinds.values(), strict=False))
    rows = 1 + max(len(kind.values) for kind in kinds.values())
    walk = {
        name: [row % (len(kind.values) + 1) for row in range(rows)] for name, kind in kinds.items()
    }

    play(place, Case(kinds, walk, (rows,)), spark, tmp_path / "job")


@pytest.mark.parametrize("place", CUT, indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_hostile_columns_are_the_same_however_they_are_cut(
    spark: SparkSession, place: Place, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - shown of a test that fails

    play(place, drawn(place, Random(seed)), spark, tmp_path / "job")


def drawn(place: Place, random: Random) -> Case:
    count = min(len(place.names), len(place.kinds), 8)
    names = random.sample(place.names, count)
    kinds = {name: place.kinds[random.choice([*place.kinds])] for name in names}
    rows = random.randrange(2, 12)
    choices = {
        name: [random.randrange(len(kind.values) + 1) for _ in range(rows)]
        for name, kind in kinds.items()
    }
    ends = (random.randrange(1, rows), rows)
    return Case(kinds, choices, ends, random.choice([None, 3, rows - 1]))
