"""JSON of Kafka through a job, compared with a plain consumer and ``json.loads``: CPU seconds.

    python -m bench.connectors.kafka_json [--records 2000000] [--servers HOST:PORT] [--way keyed]

A topic of 4 partitions is read in 5 epochs by two subtasks: ``keyed`` past Spark's JVM, ``rows``
through it, by a transform into a table of files.  CPU is that of the job's whole process tree; the
first two epochs warm up.  Without *servers* a broker for tests is started in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cpu import adopt_orphans, tree_cpu_s
from harness.kafka_broker import running_broker
from sluice.coordinator.submission import configure, submit
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import open_job
from sluice.local.driver import EpochDriver
from sluice.sinks import FilesTable
from sluice.sources import Json, Kafka
from sluice.spark.session import local_session
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS, EPOCHS, WARM_UP = 4, 5, 2
KEYS = 97


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--servers", default="")
    parser.add_argument("--way", choices=("keyed", "rows"), default="keyed")
    given = parser.parse_args()
    topic = f"bench-{time.time_ns()}"
    if given.servers:
        admin = AdminClient({"bootstrap.servers": given.servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        compare(given.servers, topic, given.records, given.way)
        return
    here, there = multiprocessing.Pipe()
    broker = multiprocessing.get_context("spawn").Process(target=host, args=(there, topic))
    broker.start()
    try:
        compare(here.recv(), topic, given.records, given.way, broker.pid)
    finally:
        here.send("enough")
        broker.join()


def host(answer: Connection, topic: str) -> None:
    """Run a broker until the parent process ends it."""
    with running_broker() as broker:
        broker.grow(topic, PARTITIONS)
        answer.send(broker.servers)
        answer.recv()


def compare(servers: str, topic: str, records: int, way: str, broker: int | None = None) -> None:
    adopt_orphans()
    fill(servers, topic, records)
    alone = [plain(servers, topic, records)]
    spent = epochs(servers, topic, records, way, broker)
    alone += [plain(servers, topic, records) for _ in range(2)]
    warm = [one * EPOCHS for one in spent[WARM_UP:]]
    print(f"plain consumer    CPU s: {min(alone):6.2f} best {statistics.median(alone):6.2f} median")
    print(f"{way:5} warm        CPU s: {min(warm):6.2f} best {statistics.median(warm):6.2f} median")
    print(f"{way:5} with its start CPU s: {sum(spent):6.2f}")
    print(f"{min(warm) / min(alone):.1f} times the plain consumer, warm, by the best runs")


def fill(servers: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
    for number in range(records):
        key = f"k{number % KEYS}"
        row = {"id": number, "k": key, "v": number * 0.5}
        while True:
            try:
                producer.produce(topic, json.dumps(row), key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def plain(servers: str, topic: str, records: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "plain",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    before = time.process_time()
    consumer.assign([TopicPartition(topic, one, 0) for one in range(PARTITIONS)])
    ended, found = 0, 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                json.loads(value)
                found += 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's name
                ended += 1
    spent = time.process_time() - before
    consumer.close()
    assert found == records
    return spent


def epochs(servers: str, topic: str, records: int, way: str, broker: int | None) -> list[float]:
    """The CPU seconds of each epoch, and of the session's start in the first one."""
    most = -(-records // EPOCHS)
    pipeline = Pipeline(
        "kafka_json", checkpointing=Checkpointing(interval=None, max_records_per_epoch=most)
    )
    values = Json("id bigint, k string, v double")
    rows = pipeline.source("rows", Kafka(servers, topic, values, columns=("offset", "key")))
    if way == "keyed":
        rows.key_by("k").aggregate("totals", n=agg.count(), ids=agg.sum("id"), v=agg.max("v"))
    else:
        rows.transform("doubled", doubled).sink("out", FilesTable())
    spent: list[float] = []
    before = cpu_s(broker)
    with tempfile.TemporaryDirectory() as folder, local_session(cores=2) as spark:
        job = open_job(pipeline, StoreLocation(root=f"file://{folder}"))
        submit(job, configure(pipeline, {}, parallelism=2))
        for _ in range(EPOCHS):
            with EpochDriver(job, spark) as driver:
                epoch = driver.take()
            assert epoch is not None, "there are records"
            assert epoch.completed is not None, epoch.failure
            now = cpu_s(broker)
            spent.append(now - before)
            before = now
    return spent


def cpu_s(broker: int | None) -> float:
    return tree_cpu_s() - (tree_cpu_s(broker) if broker is not None else 0.0)


def doubled(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("w", F.col("v") * 2)


if __name__ == "__main__":
    main()
