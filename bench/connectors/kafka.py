"""The speed of Kafka's connector, reading and publishing, compared with plain confluent-kafka.

    PYTHONPATH=include python -m bench.connectors.kafka [ROWS] [RUNS]

Both talk to librdkafka's mock cluster in a process of its own, in runs that alternate; the ratio is
that of the minima.  A plain reader makes lists of offset, time, key and value; a plain publisher
encodes the same rows, read from Parquet, and sends them in a transaction with the same header.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from sluice.core.answers import Attempt

VALUE_BYTES = 100


def host(answer: Connection) -> None:
    """Run a mock cluster until the parent process ends it."""
    from confluent_kafka import Producer

    quiet = logging.getLogger("bench.kafka")
    cluster = Producer({"test.mock.num.brokers": "1", "log_level": 0}, logger=quiet)
    brokers = cluster.list_topics(timeout=10).brokers.values()
    answer.send(",".join(f"{one.host}:{one.port}" for one in brokers))
    answer.recv()


def plain_read(servers: str, topic: str, rows: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "plain",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    columns: tuple[list[Any], ...] = ([], [], [], [])
    while len(columns[0]) < rows:
        found = [one for one in consumer.consume(10_000, timeout=0.05) if one.error() is None]
        columns[0].extend([one.offset() for one in found])
        columns[1].extend([one.timestamp() for one in found])
        columns[2].extend([one.key() for one in found])
        columns[3].extend([one.value() for one in found])
    consumer.close()
    return len(columns[0])


def our_read(servers: str, topic: str, rows: int) -> int:
    from sluice.connectors.kafka.declared import Kafka
    from sluice.core.plan import Slice

    source = Kafka(servers, topic).open({}, None)
    piece = Slice(partition=f"{topic}/0", start=0, end=rows, first_record=0, records=rows)
    return sum(batch.num_rows for batch in source.read(piece))


def plain_publish(servers: str, topic: str, parquet: bytes, run: int) -> None:
    import msgspec
    import pyarrow.parquet as pq
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"plain-{run}",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    encode = msgspec.json.Encoder().encode
    header: list[tuple[str, str | bytes | None]] = [("sluice-checkpoint-id", b"1")]
    for row in pq.read_table(io.BytesIO(parquet)).to_pylist():
        while True:
            try:
                producer.produce(topic, encode(row), str(row["id"]), headers=header)
                break
            except BufferError:
                producer.poll(0.05)
    producer.commit_transaction()
    producer.close()


def our_publish(servers: str, topic: str, parquet: bytes, run: int) -> None:
    import pyarrow.parquet as pq

    from sluice.connectors.kafka.cluster import Cluster
    from sluice.connectors.kafka.declared import KafkaTopic
    from sluice.core.timeline import Writer
    from sluice.store.open import StoreLocation

    spec = KafkaTopic(servers, topic, key="id", transactional_id=f"ours-{run}")
    with tempfile.TemporaryDirectory() as folder:
        sink = spec.open("bench", {}, StoreLocation(root=f"file://{folder}"))
        table = pq.read_table(io.BytesIO(parquet))
        staged = sink.stage(
            table,
            Attempt(checkpoint_id=1, subtask=0, checkpoint_token=f"{run}", attempt_token=f"{run}"),
        )
        assert staged is not None
        # The mock cluster's controller, which knows the ids of topics, is none of its brokers.
        with patch.object(Cluster, "topic_ids", lambda *asked: dict.fromkeys(asked[2], "")):
            began = time.perf_counter()
            sink.commit(Writer(life="bench", generation=1), 1, None, [staged])
            CLOCK.append(time.perf_counter() - began)


CLOCK: list[float] = []  # What an own run measures of itself: staging is Spark's, not counted.


def seconds(run: Callable[[], object]) -> float:
    CLOCK.clear()
    began = time.perf_counter()
    run()
    return CLOCK[0] if CLOCK else time.perf_counter() - began


def compare(name: str, rows: int, plain: Callable[[int], object], ours: Callable[[int], object],
            runs: int) -> None:  # fmt: skip
    times: dict[str, list[float]] = {"plain": [], "sluice": []}
    for run in range(runs + 1):
        for who, what in (("plain", plain), ("sluice", ours)):
            took = seconds(lambda what=what, run=run: what(run))  # type: ignore[misc]
            if run:  # The first one of each imports.
                times[who].append(took)
    for who, taken in times.items():
        best, middle = rows / min(taken), rows / statistics.median(taken)
        print(f"{name:8} {who:7} best {best:>9,.0f} rows/s   median {middle:>9,.0f} rows/s")
    ratio = min(times["plain"]) / min(times["sluice"])
    middle = statistics.median(times["plain"]) / statistics.median(times["sluice"])
    print(f"{name:8} sluice is {ratio:.0%} of plain by the best run, {middle:.0%} by the median")


def main() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from confluent_kafka import Producer

    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=host, args=(there,))
    process.start()
    servers = here.recv()
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(rows):
        producer.produce("read", b"x" * VALUE_BYTES, str(number), partition=0)
    producer.flush(60)
    ids = range(rows)
    buffer = io.BytesIO()
    columns = {"id": ids, "name": [f"name {one}" for one in ids], "price": [one / 4 for one in ids]}
    pq.write_table(pa.table(columns), buffer)
    parquet = buffer.getvalue()
    compare(
        "read",
        rows,
        lambda _: plain_read(servers, "read", rows),
        lambda _: our_read(servers, "read", rows),
        runs,
    )
    producer.list_topics("write", timeout=10)
    compare(
        "publish",
        rows,
        lambda run: plain_publish(servers, "write", parquet, run),
        lambda run: our_publish(servers, "write", parquet, run),
        runs,
    )
    here.send("enough")
    process.join()


if __name__ == "__main__":
    main()
