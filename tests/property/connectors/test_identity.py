"""Inputs that are renamed, lost, rewritten and led by others: each record once, or a refusal.

A model says what every log has.  After each act a plan has to read what is new, and that only; an
act that takes away what was not read yet, or puts others in the place of what was, has to be
refused, by plans and by readers of what was planned before, and helps when it is undone.

Faults are planted that forget a part of what was read, or do not compare it; the same seeds find
each of them.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from harness.kafka_cluster import Place, in_memory
from sluice.connectors.files import source as files_source
from sluice.connectors.files.file_set import FileIdentity
from sluice.connectors.files.text import FilesSource
from sluice.connectors.kafka.cluster import NO_EPOCH
from sluice.connectors.kafka.declared import Kafka, Raw
from sluice.connectors.kafka.source import KafkaSource, LogId
from sluice.declaration.places import Barrier, Source, SourcePosition
from sluice.errors import ConfigurationError

FILE_SEEDS = range(10)
KAFKA_SEEDS = range(4)
ACTS = 20
LONG = "x" * 99  # Some files are longer than both checksums.


def rows_of(source: Source, barrier: Barrier, column: str) -> list[str]:
    return [
        row[column]
        for piece in barrier.slices
        for batch in source.read(piece)
        for row in batch.to_pylist()
    ]


@dataclass
class Logs:
    """A folder of logs, whose lines are all others but for those of heartbeats."""

    folder: Path
    random: Random
    written: list[str] = field(default_factory=list)
    heartbeats: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "app.log"

    def write(self) -> None:
        with self.log.open("a") as file:
            for _ in range(self.random.choice([1, 4, 70])):
                self.written.append(f"{len(self.written)} {LONG}")
                file.write(f"{self.written[-1]}\n")

    def rotate(self) -> None:
        number = len(self.written)
        old = self.folder / f"app.log.{number:06d}"
        if not self.log.exists() or old.exists():
            return
        kind = self.random.choice(["rename", "copy", "gzip"])
        if kind == "copy":
            shutil.copyfile(self.log, old)
            self.log.write_bytes(b"")
            return
        self.log.rename(old)
        if kind == "gzip":
            old.with_name(f"{old.name}.gz").write_bytes(gzip.compress(old.read_bytes()))
            old.unlink()

    def beat(self) -> None:
        """A file of the same content as one that is gone, mostly with the same id."""
        (self.folder / f"beat{self.heartbeats}").unlink(missing_ok=True)
        self.heartbeats += 1
        (self.folder / f"beat{self.heartbeats}").write_text("ok\n")

    def lose(self, begun: list[str]) -> None:
        (self.folder / self.random.choice(begun)).unlink()

    def rewrite(self, begun: list[str]) -> None:
        """Another beginning; the size, and the end, may be those of before."""
        path = self.folder / self.random.choice(begun)
        body = path.read_bytes()
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(b"another\n" + gzip.decompress(body)))
        else:
            path.write_bytes(b"?" + body[1:] + self.random.choice([b"", b"more\n"]))


def play_files(folder: Path, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    random = Random(seed)
    logs = Logs(folder, random)
    source = FilesSource(str(folder), bounded=False)
    position: SourcePosition = ()
    read: list[str] = []

    def step(most: int | None) -> None:
        nonlocal position
        barrier = source.plan(position, max_records=most, parallelism=2)
        read.extend(rows_of(source, barrier, "line"))
        position = barrier.position

    logs.write()
    for _ in range(ACTS):
        act = random.choice([logs.write, logs.write, logs.rotate, logs.beat])
        if act == logs.beat:
            step(None)  # What was read may go.
        act()
        step(random.choice([5, 40, None]))
        begun = [one.partition for one in position if one.offset and "app" in one.partition]
        begun = [name for name in begun if (folder / name).exists()]
        if begun and random.random() < 0.4:
            act_of_loss = random.choice([logs.lose, logs.rewrite])
            refuse(source, position, folder, partial(act_of_loss, begun))
            step(5)  # The files that were put back have other ids.
    step(None)

    assert sorted(read) == sorted([*logs.written, *["ok"] * logs.heartbeats])


def refuse(
    source: FilesSource,
    position: SourcePosition,
    folder: Path,
    act: Callable[[], None],
) -> None:
    """What *act* does is refused if the lines that were not read are others now; it is undone."""
    kept = folder.with_name("kept")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)
    before = source.plan(position, max_records=None, parallelism=2)
    wanted = rows_of(source, before, "line")
    act()
    try:
        now = source.plan(position, max_records=None, parallelism=2)
        found = rows_of(source, now, "line")
    except ConfigurationError:
        found = None
    for path in folder.iterdir():
        path.unlink()
    for path in kept.iterdir():
        shutil.copy2(path, folder / path.name)
    assert found in (None, wanted), "rows were lost, or read again"
    assert rows_of(source, source.plan(position, max_records=None, parallelism=2), "line") == wanted


@pytest.mark.parametrize("seed", FILE_SEEDS)
def test_each_line_is_read_once_whatever_its_file_is_called(tmp_path: Path, seed: int) -> None:
    play_files(tmp_path / "logs", seed)


@pytest.fixture(scope="module")
def broker() -> Iterator[Place]:
    with in_memory() as found:
        yield found


def play_kafka(broker: Place, seed: int) -> None:
    random = Random(seed)
    topic = broker.create(1)
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0, "log_level": 0})
    spec = Kafka(broker.servers, topic, value=Raw(as_text=True))
    source = spec.open({}, None)
    assert isinstance(source, KafkaSource)
    log = broker.broker.topics[topic][0]
    truth: list[str] = []
    position: SourcePosition = ()
    number = 0

    def send() -> None:
        nonlocal number
        for _ in range(random.randint(1, 4)):
            number += 1
            producer.produce(topic, str(number), partition=0)
            assert producer.flush(60) == 0  # A batch each, so that a log may end behind any.
            truth.append(str(number))

    for _ in range(ACTS // 2):
        send()
        planned = source.plan(position, max_records=random.choice([2, None]), parallelism=1)
        start = position[0].offset if position else 0
        end = planned.position[0].offset
        wanted = truth[start:end]
        assert rows_of(source, planned, "value") == wanted
        lost_to = random.choice([None, None, random.randint(0, len(truth))])
        if random.random() < 0.7:
            log.elect(lost_to)
            del truth[log.end :]
            if random.random() < 0.7:
                send()
        try:
            assert rows_of(source, planned, "value") == wanted, "a slice has other rows"
            assert truth[start:end] == wanted, "a lost slice was read"
            following = source.plan(planned.position, max_records=None, parallelism=1)
            assert rows_of(source, following, "value") == truth[end:]
            position = planned.position
        except ConfigurationError:
            assert truth[start:end] != wanted, "nothing was lost"
            with pytest.raises(ConfigurationError):
                source.plan(planned.position, max_records=None, parallelism=1)
            position = ()


@pytest.mark.parametrize("seed", KAFKA_SEEDS)
def test_each_record_is_read_once_whoever_leads(broker: Place, seed: int) -> None:
    play_kafka(broker, seed)


def forget_the_first_bytes(patch: pytest.MonkeyPatch) -> None:
    real = FileIdentity.problem

    def problem(self: FileIdentity, mark: Any, file: Any, place: str) -> str | None:
        found = real(self, mark, file, place)
        return None if found is not None and "first" in found else found

    patch.setattr(FileIdentity, "problem", problem)


def go_by_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileIdentity, "problem", lambda *_: None)


def go_by_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        FileIdentity, "is_renamed", lambda _, mark, file: mark.file_id == file.file_id != ""
    )


def follow_no_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FilesSource, "_moved", lambda *_: {})


def follow_no_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FilesSource, "_copies", lambda *_: ())


def take_a_lost_file_as_finished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files_source, "has_unread", lambda *_, **__: False)


def forget_the_epoch(patch: pytest.MonkeyPatch) -> None:
    real = LogId.__str__
    patch.setattr(LogId, "__str__", lambda self: real(LogId(self.topic, NO_EPOCH)))


def compare_no_log_of_a_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KafkaSource, "check_continued", lambda *_: None)


def compare_no_log_of_a_slice(patch: pytest.MonkeyPatch) -> None:
    real = KafkaSource._check_logs  # noqa: SLF001

    def check(self: KafkaSource, ends: Any, what: str) -> None:
        if what != "was planned":
            real(self, ends, what)

    patch.setattr(KafkaSource, "_check_logs", check)
    patch.setattr(KafkaSource, "_check_epoch", lambda *_: None)


def refuse_every_election(patch: pytest.MonkeyPatch) -> None:
    def check(self: KafkaSource, ends: Any, what: str) -> None:
        if ends:
            raise ConfigurationError(f"{self.name} {what} by another leader")

    patch.setattr(KafkaSource, "_check_logs", check)


@pytest.mark.parametrize(
    "plant",
    [
        forget_the_first_bytes,
        go_by_the_name,
        go_by_the_id,
        follow_no_file,
        follow_no_copy,
        take_a_lost_file_as_finished,
    ],
)
def test_the_seeds_find_a_fault_of_a_files_identity(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    assert any(fails(partial(play_files, tmp_path / "logs", seed)) for seed in FILE_SEEDS)


@pytest.mark.parametrize(
    "plant",
    [
        forget_the_epoch,
        compare_no_log_of_a_position,
        compare_no_log_of_a_slice,
        refuse_every_election,
    ],
)
def test_the_seeds_find_a_fault_of_a_logs_identity(
    plant: Callable[[pytest.MonkeyPatch], None], broker: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    assert any(fails(partial(play_kafka, broker, seed)) for seed in KAFKA_SEEDS)


def fails(play: Callable[[], None]) -> bool:
    try:
        play()
    except (AssertionError, ConfigurationError, pytest.fail.Exception):
        return True
    return False
