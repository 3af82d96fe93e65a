"""A Kafka topic keeps every sink's promises, as a stranger with read_committed sees it.

Messages that librdkafka would refuse to send are refused before, the same ones to the byte.  Of a
topic that people change: rows that no longer fit are refused, and nothing is lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from harness.kafka_broker import running_broker
from harness.kafka_cluster import Place, in_memory, wait_for_ends
from sluice.connectors.kafka.cluster import DEFAULT_MAX_MESSAGE_BYTES, Cluster
from sluice.connectors.kafka.declared import AvroValue, KafkaTopic
from sluice.connectors.kafka.messages import (
    AvroRow,
    ColumnBytes,
    JsonRow,
    MessageFormat,
    check_sizes,
)
from sluice.connectors.kafka.sink import LONGEST_MARK, KafkaTarget, NotedTopic
from sluice.connectors.staged_sink import EpochRows, StagedSink
from sluice.core.answers import Attempt
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.declaration.places import DELETED, RollBack
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    StoreUnavailable,
    TableMismatch,
)
from sluice.store.open import StoreLocation
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.conftest import environment_with_sluice
from tests.contract.restore_rules import a_table_has_one_writer_whichever_root_its_job_is_in
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    SCHEMA,
    Row,
    SinkCase,
    open_staged,
    publish,
    rows,
    seen,
    stage,
    stage_deletes,
    staged_rows,
)
from tests.contract.sink_rules import (
    APPEND_RULES,
    UPSERT_RULES,
    coordinators_that_commit_at_once_publish_once,
)
from tests.planted import Caught, assert_is_caught


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[Place]:
    with in_memory() as found:
        yield found


def records(
    servers: str, topic: str, isolation: str = "read_committed", *, has_open: bool = False
) -> list[Any]:
    """The records that a plain consumer gets, in the order of partitions and offsets.

    It waits for the ends of transactions, but for those that a topic *has_open*.
    """
    if isolation == "read_committed" and not has_open:
        wait_for_ends(servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "stranger",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    numbers = sorted(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    found: list[Message] = []
    ended: set[int | None] = set()
    while len(ended) < len(numbers):
        for one in consumer.consume(1_000, timeout=0.05):
            error = one.error()
            if error is None:
                found.append(one)
            else:
                assert error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - the library's own name
                ended.add(one.partition())
    consumer.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


def as_rows(messages: list[Any]) -> list[Row]:
    values = [json.loads(message.value()) for message in messages]
    return [row | {"at": datetime.fromisoformat(row["at"])} for row in values]


def newest_rows(messages: list[Any]) -> list[Row]:
    by_key = {one.key(): one for one in messages}
    return as_rows([one for one in by_key.values() if one.value() is not None])


def case_at(spec: KafkaTopic, servers: str, folder: Path) -> SinkCase:
    location = StoreLocation(root=f"file://{folder}/shop/tables/alerts")
    read = newest_rows if spec.upsert else as_rows
    return SinkCase(
        lambda: spec.open("alerts", {}, location), lambda: read(records(servers, str(spec.topic)))
    )


def sink_at(kafka: Place, folder: Path, **options: Any) -> StagedSink:
    spec = KafkaTopic(kafka.servers, kafka.create(), **options)
    return spec.open("alerts", {}, StoreLocation(root=f"file://{folder}"))


def as_it(sink: StagedSink) -> Writer:
    """The job as the writer that *sink* names to its target."""
    return replace(JOB, sink=sink.place)


def transactional(kafka: Place, folder: Path, **options: Any) -> SinkCase:
    spec = KafkaTopic(kafka.servers, kafka.create(), **{"key": "id", **options})
    return case_at(spec, kafka.servers, folder)


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended_in_transactions(
    kafka: Place, tmp_path: Path, rule: Callable[[SinkCase], None]
) -> None:
    rule(transactional(kafka, tmp_path))


@pytest.mark.parametrize("rule", UPSERT_RULES[len(APPEND_RULES) :], ids=lambda rule: rule.__name__)
def test_upserted_in_transactions(
    kafka: Place, tmp_path: Path, rule: Callable[[SinkCase], None]
) -> None:
    rule(transactional(kafka, tmp_path, upsert=True))


@pytest.mark.parametrize("rule", APPEND_RULES, ids=lambda rule: rule.__name__)
def test_appended_without_transactions(
    kafka: Place, tmp_path: Path, rule: Callable[[SinkCase], None]
) -> None:
    if rule is coordinators_that_commit_at_once_publish_once:
        pytest.skip("at least once: coordinators that commit at once may each send the rows")
    rule(transactional(kafka, tmp_path, transactional=False))


def test_a_topic_has_one_writer(kafka: Place, tmp_path: Path) -> None:
    spec = KafkaTopic(kafka.servers, kafka.create(), key="id")
    case, other = (case_at(spec, kafka.servers, tmp_path / name) for name in ("jobs", "copy"))

    a_table_has_one_writer_whichever_root_its_job_is_in(case, other)


def test_a_zombie_inside_its_transaction_is_fenced_by_a_restore(
    kafka: Place, tmp_path: Path
) -> None:
    """It has sent rows and note, and comes back from a long sleep to commit them."""
    case = transactional(kafka, tmp_path)
    sink = case.open()
    publish(sink, 1, None, rows(1))
    zombie, has_sent, may_go_on = open_staged(case), threading.Event(), threading.Event()

    class SlowRows(EpochRows):
        def upserts(self) -> Iterator[Any]:
            yield from EpochRows.upserts(self)
            has_sent.set()
            assert may_go_on.wait(60)

    slow = SlowRows(zombie.files, (staged_rows(zombie, 2, 2),))
    with ThreadPoolExecutor() as threads:
        sleeping = threads.submit(zombie.target.publish, as_it(zombie), 2, 1, slow)
        assert has_sent.wait(60)
        case.open().recover(RESTORED, Recovery(version=1, through=3))
        publish(case.open(), 4, 1, rows(4), RESTORED)
        may_go_on.set()

    assert type(sleeping.exception()) is FencedError
    assert seen(case) == rows(1, 4)
    assert case.open().compare(JOB.life, None).ahead == (1, 4)


def test_who_takes_over_looks_for_the_note_after_it_has_fenced(tmp_path: Path) -> None:
    """Another coordinator commits just before its fence: a note that was read sooner is stale."""
    with running_broker() as broker:
        case = transactional(Place(broker.servers, broker), tmp_path)
        staged = staged_rows(case.open(), 1, 1, 2)
        is_about_to, may_commit = threading.Event(), threading.Event()
        other = open_staged(case)
        epoch = EpochRows(other.files, (staged,))  # By the target, so that the file stays there.
        first = threading.Thread(target=other.target.publish, args=(as_it(other), 1, None, epoch))

        def wait_at_the_end() -> None:
            is_about_to.set()
            assert may_commit.wait(60)

        def let_it_commit() -> None:
            may_commit.set()
            first.join(60)

        broker.before["EndTxn"] = wait_at_the_end
        first.start()
        assert is_about_to.wait(60)
        broker.before["InitProducerId"] = let_it_commit
        case.open().commit(JOB, 1, None, [staged])

        assert not first.is_alive()
        assert seen(case) == rows(1, 2)


def test_a_topic_rolls_back_never_unless_nothing_is_ahead(kafka: Place, tmp_path: Path) -> None:
    case = transactional(kafka, tmp_path)
    publish(case.open(), 1, None, rows(1))
    publish(case.open(), 2, 1, rows(2))

    assert case.open().rolls_back is RollBack.NEVER
    with pytest.raises(ConfigurationError, match="cannot be rolled back to checkpoint 1: 1 check"):
        case.open().recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
    case.open().recover(RESTORED, Recovery(version=2, through=3, roll_back=True))
    assert seen(case) == rows(1, 2)
    with pytest.raises(FencedError, match=r"Kafka topic .* a restore has passed checkpoint 3"):
        publish(case.open(), 3, 2, rows(3), RESTORED)


def test_every_message_carries_the_checkpoint_and_its_rows_headers(
    kafka: Place, tmp_path: Path
) -> None:
    topic = kafka.create()
    spec = KafkaTopic(kafka.servers, topic, key="id", headers=("name",))
    publish(case_at(spec, kafka.servers, tmp_path).open(), 7, None, rows(1, 7))

    found = {one.key(): one for one in records(kafka.servers, topic)}
    assert found[b"1"].headers() == [
        ("name", b"n1 'quoted', \\ tab\t, \xc3\xbc"),
        ("sluice-checkpoint-id", b"7"),
    ]
    assert found[b"7"].headers() == [("name", None), ("sluice-checkpoint-id", b"7")]
    assert "name" not in json.loads(found[b"1"].value())


def test_a_delete_is_a_tombstone_in_front_of_what_is_written(kafka: Place, tmp_path: Path) -> None:
    topic = kafka.create()
    case = case_at(KafkaTopic(kafka.servers, topic, key="id", upsert=True), kafka.servers, tmp_path)
    sink = case.open()
    staged = [stage(sink, 1, rows(2)), stage_deletes(sink, 1, rows(1, 2))]
    sink.commit(JOB, 1, None, [one for one in staged if one is not None])

    found = records(kafka.servers, topic)
    of_two = [one.value() is None for one in found if one.key() == b"2"]
    assert of_two == [True, False]
    assert [one.value() for one in found if one.key() == b"1"] == [None]
    assert all(DELETED not in (one.value() or b"").decode() for one in found)


def test_a_topic_that_is_missing_is_named_and_not_created(kafka: Place, tmp_path: Path) -> None:
    sink = case_at(KafkaTopic(kafka.servers, "nowhere"), kafka.servers, tmp_path).open()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has no topic 'nowhere'; create it"):
            publish(sink, 1, None, rows(1))


def test_a_group_that_is_somebody_elses_is_refused(kafka: Place, tmp_path: Path) -> None:
    topic = kafka.create()
    spec = KafkaTopic(kafka.servers, topic, transactional_id="theirs")
    theirs = Consumer({"bootstrap.servers": kafka.servers, "group.id": "theirs"})
    theirs.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    theirs.close()

    with pytest.raises(
        ProtocolViolation, match=r"group 'theirs' for topic .* is no note that this sluice"
    ):
        case_at(spec, kafka.servers, tmp_path).open().is_published(1)


def test_a_broker_that_is_away_is_tried_again(tmp_path: Path) -> None:
    sink = case_at(KafkaTopic("127.0.0.1:9", "t", timeout_s=0.3), "", tmp_path).open()

    with pytest.raises(StoreUnavailable, match=r"Kafka at 127.0.0.1:9 did not answer to read"):
        sink.is_published(1)


@pytest.mark.parametrize("lost", ["EndTxn", "InitProducerId", "Produce"])
def test_an_answer_that_is_lost_does_not_publish_twice(tmp_path: Path, lost: str) -> None:
    with in_memory() as kafka:
        case = transactional(kafka, tmp_path)
        publish(case.open(), 1, None, rows(1))
        kafka.broker.lose_answer_to.append(lost)
        sink = case.open()
        staged = staged_rows(sink, 2, 2)
        for _ in range(3):
            sink.commit(JOB, 2, 1, [staged])

        assert kafka.broker.lose_answer_to == []
        assert seen(case) == rows(1, 2)


@pytest.mark.parametrize("transactional_", [True, False], ids=["transactional", "idempotent"])
def test_a_coordinator_of_the_note_that_is_being_elected_is_waited_for(
    own_kafka: Place, tmp_path: Path, transactional_: bool
) -> None:
    """As that of a cluster whose first group this is, or whose broker was started again."""
    case = transactional(own_kafka, tmp_path, transactional=transactional_)
    own_kafka.broker.not_elected = 3

    publish(case.open(), 1, None, rows(1))

    assert own_kafka.broker.not_elected == 0
    assert seen(case) == rows(1)


def test_a_leader_that_is_being_elected_is_waited_for(own_kafka: Place, tmp_path: Path) -> None:
    case = transactional(own_kafka, tmp_path)
    own_kafka.broker.not_elected = 3

    assert open_staged(case).target.is_empty()
    assert own_kafka.broker.not_elected == 0


def test_who_asks_behind_a_commit_sees_its_note_at_once(tmp_path: Path) -> None:
    """A real broker tells of the end of a transaction before the group's offset is there."""
    with running_broker() as broker:
        case = transactional(Place(broker.servers, broker), tmp_path)
        publish(case.open(), 1, None, rows(1))
        broker.offsets_come_late = 3

        publish(case.open(), 2, 1, rows(2))

        assert case.open().compare(JOB.life, None).ahead == (1, 2)


def test_a_note_that_the_broker_shows_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers before KAFKA-17507: the transaction has ended, and its offset is not there yet."""
    with running_broker() as broker:
        case = transactional(Place(broker.servers, broker), tmp_path)
        first = open_staged(case)
        staged = staged_rows(first, 1, 1, 2)
        broker.offsets_come_late = 3
        committed = NotedTopic._committed  # noqa: SLF001 - where it dies

        def dies_behind_its_commit(topic: NotedTopic, consumer: Consumer) -> TopicPartition:
            if broker.late_offsets:
                raise SystemExit
            return committed(topic, consumer)

        with monkeypatch.context() as patch:
            patch.setattr(NotedTopic, "_committed", dies_behind_its_commit)
            with pytest.raises(SystemExit):
                first.target.publish(as_it(first), 1, None, EpochRows(first.files, (staged,)))
        assert not case.open().is_published(1)

        case.open().commit(JOB, 1, None, [staged])

        assert broker.offsets_come_late == 0
        assert seen(case) == rows(1, 2)


COMMITS = """
import sys, time
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Writer
from sluice.connectors.kafka.declared import KafkaTopic
from sluice.store.open import StoreLocation
from tests.builders import PLANNED

servers, topic, root, moment, is_transactional, file, size = sys.argv[1:]
sink = KafkaTopic(servers, topic, key="id", transactional=is_transactional == "True").open(
    "alerts", {}, StoreLocation(root=root)
)

def wait_for_death(*_):
    print("here", flush=True)
    time.sleep(60)

if moment == "before":
    wait_for_death()
if moment == "inside":
    from confluent_kafka import Consumer, Producer
    def dies_before_the_end(cls, name):
        def flushed(self, *given):
            self.flush(60)
            wait_for_death()
        return type(cls.__name__, (cls,), {name: flushed})
    import confluent_kafka
    if is_transactional == "True":
        confluent_kafka.Producer = dies_before_the_end(Producer, "commit_transaction")
    else:
        class Dying(Consumer):
            def commit(self, **_):
                wait_for_death()
        confluent_kafka.Consumer = Dying
writer = Writer(life="first-life", generation=1)
sink.commit(writer, 2, 1, [Committable(sink="alerts", file=file, rows=50, size_bytes=int(size))])
wait_for_death()
"""


@pytest.mark.parametrize("is_transactional", [True, False], ids=["transactional", "idempotent"])
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_a_coordinator_that_is_killed_is_followed_by_one_that_commits(
    kafka: Place, tmp_path: Path, moment: str, is_transactional: bool
) -> None:
    spec = KafkaTopic(kafka.servers, kafka.create(), key="id", transactional=is_transactional)
    case = case_at(spec, kafka.servers, tmp_path)
    publish(case.open(), 1, None, rows(1))
    expected = rows(*range(100, 150))
    staged = staged_rows(case.open(), 2, *range(100, 150))
    root = f"file://{tmp_path}/shop/tables/alerts"
    arguments = [kafka.servers, str(spec.topic), root, moment, str(is_transactional)]
    child = subprocess.Popen(
        [sys.executable, "-c", COMMITS, *arguments, staged.file, str(staged.size_bytes)],
        env=environment_with_sluice(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    child.kill()
    child.wait()
    child.stdout.close()

    is_sent_again = (moment, is_transactional) == ("inside", False)
    is_open = (moment, is_transactional) == ("inside", True)
    found = as_rows(records(kafka.servers, str(spec.topic), has_open=is_open))
    is_there = moment == "after" or is_sent_again
    assert sorted(found, key=lambda row: row["id"]) == rows(1) + (expected if is_there else [])
    assert case.open().is_published(2) is (moment == "after")
    for _ in range(2):
        case.open().commit(JOB, 2, 1, [staged])

    sent = expected * 2 if is_sent_again else expected
    assert seen(case) == rows(1) + sorted(sent, key=lambda row: row["id"])
    publish(case.open(), 3, 2, rows(3))
    assert case.open().compare(JOB.life, None).ahead == (1, 2, 3)


def test_what_was_sent_and_aborted_is_there_for_those_who_read_uncommitted(
    kafka: Place, tmp_path: Path
) -> None:
    """The control: without it, the tests above would pass on a broker that stores nothing."""
    topic = kafka.create()
    case = case_at(KafkaTopic(kafka.servers, topic, transactional_id=topic), "", tmp_path)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"begun", partition=0)
    producer.flush(60)
    case.open().recover(RESTORED, Recovery(version=None, through=1))

    assert [one.value() for one in records(kafka.servers, topic, "read_uncommitted")] == [b"begun"]
    assert records(kafka.servers, topic) == []


def avro_of(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [*fields]})


AVRO = avro_of(*({"name": name, "type": ["null", "string"]} for name in ("id", "body")))
FORMATS = {
    "json": MessageFormat(JsonRow(), key="id"),
    "json with headers": MessageFormat(JsonRow(), headers=("id", "shop")),
    "a column": MessageFormat(ColumnBytes("body"), key="id", headers=("shop",)),
    "avro": MessageFormat(AvroRow(AVRO), key="id", headers=("shop",)),
}
NO_BROKER = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 1}


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    """It refuses a message when it is given one, before it looks for a broker."""
    producer = Producer(NO_BROKER)
    yield producer
    producer.purge()


def a_row(length: int, *, character: str = "x") -> pa.Table:
    return pa.table({"id": ["k" * 70], "body": [character * length], "shop": [None]}).cast(
        pa.schema([(name, pa.string()) for name in ("id", "body", "shop")])
    )


def is_sent(producer: Producer, format_: MessageFormat, row: pa.Table) -> bool:
    (headers,) = format_.header_rows(row) or [[]]
    (key,), (value,) = format_.keys(row), format_.values(row)
    try:
        producer.produce("t", value, key, headers=[*headers, LONGEST_MARK])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return False
        raise
    return True


def is_accepted(format_: MessageFormat, row: pa.Table) -> bool:
    try:
        check_sizes(format_, row, DEFAULT_MAX_MESSAGE_BYTES, LONGEST_MARK)
    except ConfigurationError:
        return False
    return True


def longest(accepts: Any) -> int:
    low, high = 0, 2 * DEFAULT_MAX_MESSAGE_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle - 1)
    return low


@pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("character", ["x", "é", "\x01"], ids=["plain", "utf-8", "escaped"])
def test_the_longest_row_that_is_accepted_is_the_longest_that_is_sent(
    producer: Producer, format_: MessageFormat, character: str
) -> None:
    found = longest(lambda length: is_accepted(format_, a_row(length, character=character)))

    assert is_sent(producer, format_, a_row(found, character=character))
    assert not is_sent(producer, format_, a_row(found + 1, character=character))
    assert 100_000 < found < DEFAULT_MAX_MESSAGE_BYTES


def test_the_message_names_the_column_and_what_to_set() -> None:
    rows = pa.concat_tables([a_row(1), a_row(1_000_000)])

    with pytest.raises(ConfigurationError) as refused:
        check_sizes(FORMATS["json"], rows, 1_000_000, LONGEST_MARK)

    assert str(refused.value) == (
        "a message of 1,000,248 bytes is larger than message.max.bytes, 1,000,000; its row's "
        "longest column is 'body': shorten it before the sink, or give KafkaTopic "
        "config={'message.max.bytes': ...}, and the topic a max.message.bytes that is not smaller"
    )


def test_nested_columns_are_measured_as_they_are_written(producer: Producer) -> None:
    format_ = MessageFormat(JsonRow())

    def tagged(many: int) -> pa.Table:
        return pa.table({"tags": [["tag"] * many]})

    found = longest(lambda many: is_accepted(format_, tagged(many)))

    assert is_sent(producer, format_, tagged(found))
    assert not is_sent(producer, format_, tagged(found + 1))


def test_the_limit_is_what_the_sink_gives_to_its_producer() -> None:
    assert Cluster("k:9092").max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES
    assert Cluster("k:9092", (("message.max.bytes", "5000"),)).max_message_bytes == 5_000
    with pytest.raises(ConfigurationError, match=r"'message.max.bytes' is '5 MB'; make it a num"):
        _ = Cluster("k:9092", (("message.max.bytes", "5 MB"),)).max_message_bytes


def test_a_topic_that_is_gone_is_refused_and_published_to_when_it_is_back(
    own_kafka: Place, tmp_path: Path
) -> None:
    case = transactional(own_kafka, tmp_path)
    sink = open_staged(case)
    assert isinstance(sink.target, KafkaTarget)
    topic = sink.target.topic.name
    sink.check(None, SCHEMA, ())
    publish(sink, 1, None, rows(1))
    staged = staged_rows(sink, 2, 2, 3)
    gone = own_kafka.broker.topics.pop(topic)

    with pytest.raises(ConfigurationError, match=f"has no topic '{topic}'; create it"):
        case.open().check(1, SCHEMA, ())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"has no topic '{topic}'; create it"):
            case.open().commit(JOB, 2, 1, [staged])
    own_kafka.broker.topics[topic] = gone
    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2, 3)


@pytest.mark.parametrize("transactional_", [True, False], ids=["transactional", "idempotent"])
def test_a_topic_that_was_made_anew_has_no_checkpoint_whatever_the_broker_kept_of_the_old_one(
    own_kafka: Place, tmp_path: Path, transactional_: bool
) -> None:
    """Brokers delete a topic's offsets with it, if the group's coordinator is not away then."""
    case = transactional(own_kafka, tmp_path, transactional=transactional_)
    sink = open_staged(case)
    assert isinstance(sink.target, KafkaTarget)
    publish(sink, 1, None, rows(1))
    publish(sink, 2, 1, rows(2))
    staged = staged_rows(sink, 3, 3)
    made_anew(own_kafka, sink.target.topic.name)

    assert case.open().compare(JOB.life, 2) == TimelineComparison(lacks=True)
    assert not case.open().is_published(1)
    with pytest.raises(TableMismatch, match="'alerts' does not show checkpoint 2, which the job"):
        case.open().check(2, SCHEMA, [staged])
    with pytest.raises(TableMismatch, match="checkpoint 3 continues checkpoint 2, which the table"):
        case.open().commit(JOB, 3, 2, [staged])
    assert seen(case) == []
    case.open().recover(RESTORED, Recovery(version=2, through=3, accepts=True))
    publish(case.open(), 4, 2, rows(4), RESTORED)
    assert case.open().compare(JOB.life, 4) == TimelineComparison(newest=4)
    assert seen(case) == rows(4)


def test_a_topic_that_is_made_anew_inside_a_commit_is_not_published_to_twice(
    own_kafka: Place, tmp_path: Path
) -> None:
    """What was sent by then is in the new one, whose note says that it is the old one's."""
    case = transactional(own_kafka, tmp_path)
    sink = open_staged(case)
    assert isinstance(sink.target, KafkaTarget)
    topic = sink.target.topic.name
    publish(sink, 1, None, rows(1))

    class ReplacedMeanwhile(EpochRows):
        def upserts(self) -> Iterator[Any]:
            made_anew(own_kafka, topic)
            yield from EpochRows.upserts(self)

    rows_of_two = ReplacedMeanwhile(sink.files, (staged_rows(sink, 2, 2),))
    sink.target.publish(as_it(sink), 2, 1, rows_of_two)

    with pytest.raises(TableMismatch, match="'alerts' does not show checkpoint 2"):
        case.open().check(2, SCHEMA, [staged_rows(sink, 3, 3)])
    assert case.open().compare(JOB.life, 2).lacks


def test_a_note_without_an_id_is_believed_until_the_broker_tells_ids(
    own_kafka: Place, tmp_path: Path
) -> None:
    case = transactional(own_kafka, tmp_path)
    sink = open_staged(case)
    assert isinstance(sink.target, KafkaTarget)
    topic, ids = sink.target.topic.name, own_kafka.broker.ids
    known, ids[topic] = ids[topic], bytes(16)
    publish(sink, 1, None, rows(1))
    ids[topic] = known

    publish(case.open(), 2, 1, rows(2))

    assert case.open().compare(JOB.life, None).ahead == (1, 2)
    made_anew(own_kafka, topic)
    assert case.open().compare(JOB.life, None).ahead == ()


def made_anew(kafka: Place, topic: str) -> None:
    """Delete the topic and create it again; the broker keeps the groups' offsets."""
    del kafka.broker.topics[topic]
    kafka.broker.grow(topic, 4)


ORDER = avro_of(
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "shop", "type": "string", "default": ""},
)


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"key": "id"}, {"n": pa.int64()}, "takes the column 'id', but its rows have n"),
        ({"key": "id"}, {"id": pa.float64()}, "column 'id' of a Kafka sink is double; make it"),
        ({"value": "body"}, {"id": pa.int64()}, "takes the column 'body', but its rows have id"),
        ({"headers": ("h",)}, {"id": pa.int64()}, "takes the column 'h', but its rows have id"),
        ({"value": AvroValue(ORDER)}, {"n": pa.int64()}, "has a field 'id', but its rows have n;"),
    ],
    ids=["key", "type of the key", "value", "header", "field"],
)
def test_columns_of_which_no_message_can_be_made_are_refused_before_the_checkpoint_completes(
    options: dict[str, Any],
    schema: dict[str, pa.DataType],
    says: str,
    kafka: Place,
    tmp_path: Path,
) -> None:
    sink = sink_at(kafka, tmp_path, **options)

    with pytest.raises(ConfigurationError, match=says):
        sink.check(None, pa.schema([*schema.items()]), ())


def test_a_field_that_may_be_null_or_has_a_default_needs_no_column(
    kafka: Place, tmp_path: Path
) -> None:
    sink = sink_at(kafka, tmp_path, key="id", value=AvroValue(ORDER))

    sink.check(None, pa.schema([("id", pa.int64())]), ())


def test_a_message_that_the_producer_would_refuse_is_refused_before_it_is_staged(
    kafka: Place, tmp_path: Path
) -> None:
    sink = sink_at(kafka, tmp_path, config={"message.max.bytes": "2000"})
    long = pa.table({"id": [1, 2], "note": ["short", "x" * 2_000]})
    attempt = Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED)

    with pytest.raises(ConfigurationError, match=r"than message\.max\.bytes, 2,000; its row"):
        sink.stage(long, attempt)
    staged = sink.stage(long.slice(0, 1), attempt)

    assert staged is not None
    sink.commit(JOB, 1, None, [staged])


KEYED = pa.table({"id": pa.array([1, None], pa.int64()), "note": ["a", "b"]})


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[Callable[..., StagedSink]]:
    """Opens a sink of a topic that is compacted."""
    with in_memory() as kafka:

        def opened(**options: Any) -> StagedSink:
            sink = sink_at(kafka, tmp_path, **options)
            assert isinstance(sink.target, KafkaTarget)
            kafka.broker.compacted.add(sink.target.topic.name)
            return sink

        yield opened


def staged_table(sink: StagedSink, table: pa.Table) -> Any:
    return sink.stage(
        table,
        Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED),
    )


def test_a_null_key_of_an_upsert_is_refused_before_it_is_staged(
    compacted: Callable[..., StagedSink],
) -> None:
    sink = compacted(key="id", upsert=True)

    with pytest.raises(ConfigurationError, match=r"'id' is part of the key of Kafka topic '.*', "):
        staged_table(sink, KEYED)

    deleted = KEYED.append_column(DELETED, pa.array([True, True]))
    assert staged_table(sink, deleted) is not None  # What was never there.


@pytest.mark.parametrize(
    ("options", "says"),
    [({"key": "id"}, r"is null in rows in its key 'id'; declare a key"), ({}, "has no key=; decl")],
    ids=["a null", "no key"],
)
def test_a_message_without_a_key_for_a_compacted_topic_is_refused_before_the_checkpoint_completes(
    options: dict[str, Any], says: str, compacted: Callable[..., StagedSink]
) -> None:
    sink = compacted(**options)
    staged = staged_table(sink, KEYED)

    with pytest.raises(ConfigurationError, match=f"is compacted and takes no message .* {says}"):
        sink.check(None, KEYED.schema, [staged])
    with pytest.raises(ConfigurationError, match=r"refuses to write .*INVALID_RECORD"):
        sink.commit(JOB, 1, None, [staged])  # What would be owed for ever.


def test_a_message_without_a_key_is_taken_by_other_topics_and_keyed_ones_by_all(
    kafka: Place, tmp_path: Path, compacted: Callable[..., StagedSink]
) -> None:
    for sink, table in [
        (sink_at(kafka, tmp_path), KEYED),
        (sink_at(kafka, tmp_path, key="id"), KEYED),
        (compacted(key="id"), KEYED.slice(0, 1)),
    ]:
        staged = staged_table(sink, table)
        sink.check(None, table.schema, [staged])
        sink.commit(JOB, 1, None, [staged])
        assert sink.is_published(1)


FAULTS = [
    Caught(
        "the note of a topic of that name is believed", "connectors.kafka.sink:NotedTopic._read",
        "note.table != now.table", "False",
        test_a_topic_that_was_made_anew_has_no_checkpoint_whatever_the_broker_kept_of_the_old_one,
        {"transactional_": True},
    ),
    Caught(
        "the note names whatever topic was there first", "connectors.kafka.sink:NotedTopic._read",
        "replace(note, table=now.table)", "note",
        test_a_note_without_an_id_is_believed_until_the_broker_tells_ids,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
