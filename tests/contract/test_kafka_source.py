"""Kafka as a source: every committed record is in one epoch, once, and a slice never changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.kafka_cluster import Place, in_memory, wait_for_ends
from sluice.connectors.kafka.declared import Json, Kafka, Raw
from sluice.connectors.kafka.source import KafkaSource, consume
from sluice.core.plan import Slice
from sluice.declaration.places import RECORD, Barrier, SourcePosition
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable
from tests.contract.source_rules import Row, checked
from tests.planted import Caught, assert_is_caught


@pytest.fixture
def broker() -> Iterator[Place]:
    """Our own broker, which expires, compacts and makes topics anew at once."""
    with in_memory() as found:
        yield found


def a_source(kafka: Place, *topics: str, **options: Any) -> KafkaSource:
    spec = Kafka(kafka.servers, topics, **{"value": Raw(as_text=True), "bounded": True, **options})
    opened = spec.open({}, None)
    assert isinstance(opened, KafkaSource)
    return opened


def producer(kafka: Place, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": kafka.servers, "linger.ms": 0, **config})


def send(kafka: Place, topic: str, partition: int, *values: str, at_ms: int = 0) -> None:
    sender = producer(kafka)
    for value in values:
        sender.produce(topic, value, f"k{value}", partition, timestamp=at_ms)
    assert sender.flush(60) == 0
    sender.close()


def send_in_transaction(
    kafka: Place, topic: str, *values: str, commit: bool = True, partition: int = 0
) -> None:
    sender = producer(kafka, **{"transactional.id": f"{topic}-{commit}"})
    sender.init_transactions(60)
    sender.begin_transaction()
    for value in values:
        sender.produce(topic, value, partition=partition)
    sender.flush(60)
    if commit:
        sender.commit_transaction(60)
    else:
        sender.abort_transaction(60)
    sender.close()
    wait_for_ends(kafka.servers, topic)


def plan(source: KafkaSource, position: SourcePosition = (), most: int | None = None) -> Barrier:
    barrier = source.plan(position, max_records=most, parallelism=2)
    assert barrier == source.plan(position, max_records=most, parallelism=2)
    return barrier


def read_slice(source: KafkaSource, piece: Slice) -> list[Row]:
    return [row for batch in checked(source, piece) for row in batch.to_pylist()]


def read(source: KafkaSource, barrier: Barrier) -> list[Row]:
    """The epoch's rows; each slice is read twice."""
    found: list[Row] = []
    for piece in barrier.slices:
        first, again = read_slice(source, piece), read_slice(source, piece)
        assert first == again
        assert len(first) <= piece.records
        assert all(piece.start <= row[RECORD] < piece.end for row in first)
        found += first
    return found


def values(rows: list[Row]) -> list[str]:
    return sorted(row["value"] for row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_epochs_of_any_size_are_the_whole_topic_once(kafka: Place, seed: int) -> None:
    random = Random(seed)
    topic, expected = kafka.create(), []
    source = a_source(kafka, topic)
    position: SourcePosition = ()
    rows: list[Row] = []
    for round_ in range(4):
        for partition in range(4):
            new = [f"{round_}-{partition}-{n}" for n in range(random.randrange(30))]
            send(kafka, topic, partition, *new)
            expected += new
        barrier = plan(source, position, random.choice([None, 1, 17, 1000]))
        rows += read(source, barrier)
        position = barrier.position
    last = plan(source, position)
    rows += read(source, last)

    assert values(rows) == sorted(expected)
    assert last.exhausted
    assert not plan(source, last.position).slices


def test_a_row_says_where_it_is_from(kafka: Place) -> None:
    topic = kafka.create()
    columns = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers")
    to = producer(kafka)
    to.produce(topic, b"v", b"k", 2, timestamp=1_700_000_000_123, headers=[("h", b"1")])
    to.produce(topic, None, None, 2, timestamp=1_700_000_000_124)
    to.flush(60)
    source = a_source(kafka, topic, columns=columns)
    first, tombstone = read(source, plan(source))

    assert first.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first == {
        "topic": topic,
        "partition": 2,
        "offset": 0,
        "timestamp_type": "create",
        "key": b"k",
        "headers": [("h", b"1")],
        "value": "v",
        "_malformed": None,
        "_raw": None,
        "_record": 0,
    }
    assert (tombstone["key"], tombstone["value"], tombstone["headers"]) == (None, None, [])
    assert tombstone["_malformed"] is None


@pytest.mark.parametrize("value", [Json("n int"), Raw(as_text=True)], ids=["json", "text"])
def test_a_key_that_is_no_text_and_a_time_that_is_no_moment_make_a_record_malformed(
    broker: Place, value: Json | Raw
) -> None:
    """Of JSON, which Spark decodes, the text says why, and is none."""
    topic = broker.create(1)
    never = 2**63 - 1
    to = producer(broker)
    for key, at_ms in ((b"k", 1), (b"\xff\xfe", 2), (b"k", never)):
        to.produce(topic, b'{"n": 1}', key, 0, timestamp=at_ms)
    to.flush(60)
    source = a_source(broker, topic, columns=("key", "timestamp"), key="string", value=value)

    rows = read(source, plan(source))

    reasons = [
        None,
        "the key is not UTF-8 (hex fffe)",
        f"the record's timestamp is no moment: {never} ms",
    ]
    assert [(row["key"], row["timestamp"] is None) for row in rows] == [
        ("k", False),
        (None, False),
        ("k", True),
    ]
    assert [row[RECORD] for row in rows] == [0, 1, 2]
    if isinstance(value, Raw):
        assert [row["_malformed"] for row in rows] == reasons
        assert [row["_raw"] for row in rows] == [None, '{"n": 1}', '{"n": 1}']
    else:
        texts = [f'{reason}: {{"n": 1}}' if reason else '{"n": 1}' for reason in reasons]
        assert [row["value"] for row in rows] == texts


def test_several_topics_are_one_source(kafka: Place) -> None:
    topics = sorted([kafka.create(), kafka.create()])
    send(kafka, topics[0], 0, "a")
    send(kafka, topics[1], 3, "b")
    source = a_source(kafka, *topics)

    barrier = plan(source)
    assert [part.partition for part in barrier.position] == [
        f"{topic}/{number}" for topic in topics for number in range(4)
    ]
    assert values(read(source, barrier)) == ["a", "b"]


def test_the_first_epoch_begins_at_the_declared_start(kafka: Place) -> None:
    topic = kafka.create()
    send(kafka, topic, 0, "a", "b", "c")

    def first(start: Any) -> list[str]:
        source = a_source(kafka, topic, start=start)
        return values(read(source, plan(source)))

    assert first("earliest") == ["a", "b", "c"]
    assert first("latest") == []
    assert first({f"{topic}/0": 2}) == ["c"]
    with pytest.raises(ConfigurationError, match=r"offset 9 of 't-.*/0', which has 0 to 3"):
        first({f"{topic}/0": 9})
    source = a_source(kafka, topic, start="latest")
    position = plan(source).position
    send(kafka, topic, 1, "new")
    assert values(read(source, plan(source, position))) == ["new"]


def test_a_time_is_found_in_each_partition(kafka: Place) -> None:
    topic = kafka.create()
    for number, value in enumerate("abcd"):
        send(kafka, topic, 0, value, at_ms=1_700_000_000_000 + number)
    source = a_source(kafka, topic, start=1_700_000_000_002)
    later = a_source(kafka, topic, start=1_800_000_000_000)

    assert values(read(source, plan(source))) == ["c", "d"]
    assert values(read(later, plan(later))) == []


def test_a_missing_topic_is_named(kafka: Place) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has no topic 'nowhere'; create it"):
            a_source(kafka, kafka.create(), "nowhere").readable()


def test_a_broker_that_is_away_is_tried_again() -> None:
    source = a_source(Place("127.0.0.1:9"), "t", timeout_s=0.3)

    with pytest.raises(StoreUnavailable, match=r"Kafka at 127\.0\.0\.1:9 did not answer to descr"):
        source.readable()
    with pytest.raises(StoreUnavailable):
        list(source.read(Slice(partition="t/0", start=0, end=1, first_record=0, records=1)))
    source.notify_complete("watchers", ())


def test_an_open_transaction_is_in_no_epoch_and_an_aborted_one_never(
    kafka: Place,
) -> None:
    topic = kafka.create()
    send_in_transaction(kafka, topic, "a", "b")
    send_in_transaction(kafka, topic, "lost", commit=False)
    begun = producer(kafka, **{"transactional.id": topic})
    begun.init_transactions(60)
    begun.begin_transaction()
    begun.produce(topic, b"open", partition=0)
    begun.flush(60)
    send(kafka, topic, 0, "behind")
    source = a_source(kafka, topic)

    barrier = plan(source)
    assert values(read(source, barrier)) == ["a", "b"]
    assert barrier.position[0].offset == 5  # a, b, their end, lost, its end.
    begun.commit_transaction(60)
    wait_for_ends(kafka.servers, topic)
    assert values(read(source, plan(source, barrier.position))) == ["behind", "open"]


def test_a_slice_that_is_but_a_gap_ends(kafka: Place) -> None:
    """Offsets of ends of transactions and of aborted records: any cut among them is read."""
    topic = kafka.create()
    for number in range(3):
        send_in_transaction(kafka, topic, f"kept{number}")
        send_in_transaction(kafka, topic, "x", "y", commit=False)
    source = a_source(kafka, topic)
    whole = plan(source)
    end = whole.position[0].offset

    rows: list[Row] = []
    for start in range(end):
        piece = Slice(partition=f"{topic}/0", start=start, end=start + 1, first_record=0, records=1)
        rows += read_slice(source, piece)
    assert end == 15
    assert rows == read(source, whole)
    assert values(rows) == ["kept0", "kept1", "kept2"]


def test_what_was_compacted_away_is_a_gap(broker: Place) -> None:
    topic = broker.create()
    for value in "abcde":
        send(broker, topic, 0, value)
    source = a_source(broker, topic)
    barrier = plan(source)
    send(broker, topic, 0, "f")  # The cleaner leaves the last segment alone.
    for offset in (1, 4):
        broker.broker.compact_away(topic, 0, offset)

    assert values(read(source, barrier)) == ["a", "c", "d"]


def test_a_new_partition_is_read_from_its_beginning_even_if_others_began_late(
    broker: Place,
) -> None:
    topic = broker.create(partitions=1)
    send(broker, topic, 0, "old")
    source = a_source(broker, topic, start="latest")
    position = plan(source).position
    broker.broker.grow(topic, 2)
    send(broker, topic, 1, "first of the new one")

    barrier = plan(source, position)
    assert values(read(source, barrier)) == ["first of the new one"]
    assert [part.partition for part in barrier.position] == [f"{topic}/0", f"{topic}/1"]


def expiring(broker: Place, **options: Any) -> tuple[KafkaSource, str, SourcePosition]:
    """A source that has read two of six records, of which four then expire."""
    topic = broker.create(partitions=1)
    for value in "abcdef":
        send(broker, topic, 0, value)
    source = a_source(broker, topic, **options)
    return source, topic, plan(source, (), 2).position


def test_records_that_expired_before_they_were_planned_are_counted(broker: Place) -> None:
    source, topic, position = expiring(broker)
    broker.broker.expire(topic, 0, 4)
    lost = r"offsets 2 to 3 of partition 't-.*/0' of Kafka .* \(2 of them\) have expired"

    with pytest.raises(ConfigurationError, match=lost):
        plan(source, position)
    skipping = replace(source, skips_gaps=True)
    assert values(read(skipping, plan(skipping, position))) == ["e", "f"]


def test_records_that_expired_after_they_were_planned_are_named(broker: Place) -> None:
    source, topic, position = expiring(broker)
    barrier = plan(source, position)
    broker.broker.expire(topic, 0, 5)

    with pytest.raises(ConfigurationError, match=r"offsets 2 to 3 of 't-.*/0' .* have expired"):
        list(source.read(barrier.slices[0]))
    skipping = replace(source, skips_gaps=True)
    assert values(read(skipping, barrier)) == ["f"]


def test_a_topic_that_was_made_anew_is_noticed(broker: Place) -> None:
    source, topic, _ = expiring(broker)
    barrier = plan(source)
    del broker.broker.topics[topic]
    broker.broker.grow(topic, 1)

    with pytest.raises(ConfigurationError, match="read to offset 6 and ends at 0 now"):
        plan(source, barrier.position)
    with pytest.raises(ConfigurationError, match="planned to offset 3 and ends at 0 now"):
        list(source.read(barrier.slices[0]))


def test_a_topic_that_was_made_anew_is_refused_however_many_records_it_has(broker: Place) -> None:
    """Also by an epoch that was planned before: its offsets would be those of other records."""
    source, topic, _ = expiring(broker)
    first = plan(source, (), 4)
    assert len(values(read(source, first))) == 4
    del broker.broker.topics[topic]
    broker.broker.grow(topic, 1)
    send(broker, topic, 0, *"uvwxyz")

    with pytest.raises(ConfigurationError, match=r"'t-.*/0' of .* was made anew since then \("):
        plan(source, first.position)
    with pytest.raises(ConfigurationError, match=r"topic 't-.*' .* made anew after this epoch was"):
        read(source, first)
    assert values(read(source, plan(source))) == [*"uvwxyz"]


def test_a_broker_that_knows_topics_by_no_id_goes_by_the_offsets_alone(broker: Place) -> None:
    """Those before 2.1; when it learns of ids and epochs the position does, too."""
    source, topic, _ = expiring(broker)
    broker.broker.has_epochs = False
    known, broker.broker.ids[topic] = broker.broker.ids[topic], bytes(16)
    first = plan(source, (), 2)
    assert [part.version for part in first.position] == [""]
    assert values(read(source, first)) == ["a", "b"]
    broker.broker.ids[topic] = known
    broker.broker.has_epochs = True

    second = plan(source, first.position)
    assert values(read(source, second)) == [*"cdef"]
    topic_id, _, epoch = second.position[0].version.partition("@")
    assert topic_id
    assert epoch == "0"


def test_a_log_that_lost_what_was_read_is_refused_however_many_records_it_gets(
    broker: Place,
) -> None:
    """An unclean election: also by an epoch that was planned before (KIP-320)."""
    source, topic, _ = expiring(broker)
    some, whole = plan(source, (), 4), plan(source)
    behind = plan(source, whole.position)
    broker.broker.topics[topic][0].elect(3)
    for letters in ("", "xyz", "uvw"):
        send(broker, topic, 0, *letters)
        for barrier in (some, whole, behind):
            with pytest.raises(ConfigurationError, match=r"'t-.*/0' of .*(has fewer|truncated)"):
                plan(source, barrier.position)
        for piece in whole.slices:
            if piece.end > 3:
                with pytest.raises(
                    ConfigurationError, match=r"'t-.*/0' .*(other records|truncated)"
                ):
                    read_slice(source, piece)

    assert values(read(source, plan(source))) == [*"abcuvwxyz"]
    # What lies before the loss was not lost.
    assert values(read(source, plan(source, plan(source, (), 3).position))) == [*"uvwxyz"]


def test_a_planned_log_whose_records_are_gone_without_others_is_refused(broker: Place) -> None:
    """Only ends of transactions have their offsets, so that no record shows it."""
    source, topic, _ = expiring(broker)
    whole = plan(source)
    broker.broker.topics[topic][0].elect(4)
    for _ in range(2):
        send_in_transaction(broker, topic, "lost", commit=False)

    with pytest.raises(ConfigurationError, match="was planned to offset 6 in leader epoch 0"):
        read_slice(source, whole.slices[-1])


def test_a_log_that_loses_records_while_they_are_read_is_refused(broker: Place) -> None:
    source, topic, _ = expiring(broker)
    whole = plan(source)

    def lose() -> None:
        broker.broker.topics[topic][0].elect(4)
        send(broker, topic, 0, *"xyz")

    broker.broker.before["Fetch"] = lose
    with pytest.raises(ConfigurationError, match=r"'t-.*/0' of .*(has fewer|other records)"):
        read_slice(source, whole.slices[-1])


def test_an_election_that_lost_nothing_of_what_was_read_goes_on(broker: Place) -> None:
    source, topic, _ = expiring(broker)
    some, whole = plan(source, (), 4), plan(source)
    log = broker.broker.topics[topic][0]
    log.elect()
    assert values(read(source, whole)) == [*"abcdef"]
    send(broker, topic, 0, "g")
    log.elect(5)  # Of what was read to offset 4 nothing is lost.
    send(broker, topic, 0, *"hi")

    barrier = plan(source, some.position)
    assert values(read(source, barrier)) == [*"ehi"]
    assert barrier.position[0].version.endswith("@2")
    log.elect()
    send(broker, topic, 0, "j")
    assert values(read(source, plan(source, barrier.position))) == ["j"]


def test_records_that_expired_before_an_election_are_not_taken_for_lost_ones(
    broker: Place,
) -> None:
    source, topic, position = expiring(broker)
    broker.broker.topics[topic][0].elect()
    send(broker, topic, 0, "g")
    broker.broker.expire(topic, 0, 4)

    with pytest.raises(ConfigurationError, match=r"offsets 2 to 3 of .* have expired"):
        plan(source, position)
    skipping = replace(source, skips_gaps=True)
    assert values(read(skipping, plan(skipping, position))) == ["e", "f", "g"]


def test_a_position_of_another_format_is_refused_by_name(broker: Place) -> None:
    source, _, position = expiring(broker)
    old = tuple(replace(one, version=one.version.partition("@")[0]) for one in position)

    with pytest.raises(ProtocolViolation, match="is no topic's id with a leader epoch"):
        plan(source, old)


def test_a_leader_that_is_being_elected_is_waited_for(broker: Place) -> None:
    source, _, _ = expiring(broker)
    broker.broker.not_elected = 3

    assert values(read(source, plan(source))) == [*"abcdef"]
    assert broker.broker.not_elected == 0


def test_a_broker_that_stops_in_the_middle_is_tried_again(broker: Place) -> None:
    """It is patient until then, however slow the machine is."""
    source, _, _ = expiring(broker)
    piece = plan(source).slices[0]
    broker.broker.lose_answer_to += ["Fetch"] * 1_000
    cluster = replace(source.cluster, timeout_s=0.5)

    with (
        source.cluster.consumer(auto_offset_reset="error") as consumer,
        pytest.raises(StoreUnavailable, match=r"gave nothing of 't-.*/0' for 0 s, at offset 0"),
    ):
        list(consume(cluster, consumer, piece, piece.start))


def test_the_groups_offsets_are_there_for_those_who_watch(kafka: Place) -> None:
    topic = kafka.create()
    send(kafka, topic, 0, "a", "b")
    source = a_source(kafka, topic)
    source.notify_complete(f"watch-{topic}", plan(source).position)

    watcher = Consumer({"bootstrap.servers": kafka.servers, "group.id": f"watch-{topic}"})
    found = watcher.committed([TopicPartition(topic, number) for number in range(4)], 60)
    watcher.close()
    assert [committed.offset for committed in found] == [2, 0, 0, 0]


SOURCE = "connectors.kafka.source:KafkaSource"
FAULTS = [
    Caught(
        "a topic is known by its name", f"{SOURCE}.check_continued",
        "then.topic != now.topic", "False",
        test_a_topic_that_was_made_anew_is_refused_however_many_records_it_has,
    ),
    Caught(
        "an epoch that was planned reads whatever topic has the name", f"{SOURCE}.read",
        "if planned.topic and", "if False and",
        test_a_topic_that_was_made_anew_is_refused_however_many_records_it_has,
    ),
    Caught(
        "a log is known by its offsets, whoever leads it", f"{SOURCE}.check_continued",
        "if then.is_led_otherwise(now):", "if False:",
        test_a_log_that_lost_what_was_read_is_refused_however_many_records_it_gets,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
