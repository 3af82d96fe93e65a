"""A Kafka broker for tests, with the protocol's transactions (KIP-98) and leader epochs (KIP-320).

librdkafka's mock cluster ignores transactions.  One node, in memory, without replicas or groups;
an election is what a test does to a log.
"""

from __future__ import annotations

import secrets
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.gateway import serving

NOT_LEADER, NOT_COORDINATOR = 6, 16
OUT_OF_RANGE, UNKNOWN_TOPIC, UNSUPPORTED, INVALID_RECORD, UNSTABLE = 1, 3, 35, 87, 88
INVALID_EPOCH, INVALID_TXN_STATE = 47, 48
# Key: first and last version that is spoken; the newest ones before "flexible" encoding, but for
# OffsetFetch, which can ask for stable offsets since version 7 (KIP-447), and Metadata, which has
# topics' ids since version 10 (KIP-516).
VERSIONS = {
    0: (3, 3), 1: (4, 4), 2: (5, 5), 3: (12, 12), 8: (2, 2), 9: (7, 7), 10: (1, 1), 18: (0, 0),
    21: (0, 0), 22: (0, 0), 23: (2, 2), 24: (0, 0), 25: (0, 0), 26: (0, 0), 28: (0, 0),
    32: (1, 1),
}  # fmt: skip
NAMES = {0: "Produce", 26: "EndTxn", 22: "InitProducerId", 1: "Fetch", 2: "ListOffsets"}


@contextmanager
def running_broker(partitions: int = 4) -> Iterator[Broker]:
    broker = Broker(partitions=partitions)
    server = _Server(("127.0.0.1", 0), _Connection)
    server.broker = broker
    broker.port = server.server_address[1]
    with serving(server):
        yield broker


@dataclass(slots=True)
class Batch:
    first: int
    last: int
    raw: bytes
    times: list[int]


@dataclass(slots=True)
class Log:
    """One partition.  ``open`` has the first offset of each producer's transaction.

    ``epochs`` has the first offset of each leader epoch.  A log gets shorter by an election only,
    of a leader that has less of it; so setting its end back is one.
    """

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    sent: dict[tuple[int, int, int], int] = field(default_factory=dict)  # By sequence number.
    epochs: list[int] = field(default_factory=lambda: [0])
    _end: int = 0

    @property
    def end(self) -> int:
        return self._end

    @end.setter
    def end(self, offset: int) -> None:
        if offset < self._end:
            self.elect(offset)
        self._end = offset

    @property
    def epoch(self) -> int:
        return len(self.epochs) - 1

    def elect(self, end: int | None = None) -> None:
        """Begin a leader epoch; the new leader has the log up to *end*, or all of it."""
        self._end = self._end if end is None else end
        self.batches = [one for one in self.batches if one.last < self._end]
        self.epochs = [*(min(start, self._end) for start in self.epochs), self._end]
        self.sent.clear()

    def end_of_epoch(self, epoch: int) -> int:
        return self.epochs[epoch + 1] if epoch < self.epoch else self._end

    @property
    def stable_end(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, raw: bytes) -> int:
        count = struct.unpack_from(">i", raw, 23)[0] + 1
        first, self.end = self.end, self.end + count
        base = struct.unpack_from(">q", raw, 27)[0]
        times = [base] * count
        for index, delta in enumerate(_time_deltas(raw)):
            times[index] = base + delta
        head = _i64(first) + raw[8:12] + _i32(self.epoch)
        self.batches.append(Batch(first, self.end - 1, head + raw[16:], times))
        return first


@dataclass(slots=True)
class Transaction:
    pid: int
    epoch: int = 0
    logs: list[Log] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], tuple[int, str | None]] = field(default_factory=dict)
    is_open: bool = False
    committed: bool | None = None


class Broker:
    """One node.

    ``lose_answer_to`` names requests that are carried out and never answered.  ``before`` has
    functions that are called once, by the next request of a name.  ``offsets_come_late`` is the
    number of stable reads of a transaction's offsets that do not find them yet, as before
    KAFKA-17507; ``not_elected`` that of questions for a group's or a log's offsets that it answers
    as one that is not yet its coordinator or leader.  Without ``has_epochs`` it is one before 2.1,
    which tells none (KIP-320).
    ``compacted`` has the topics that take no message without a key (KAFKA-4808).
    """

    def __init__(self, partitions: int) -> None:
        self.port = 0
        self.partitions = partitions
        self.topics: dict[str, list[Log]] = {}
        self.ids: dict[str, bytes] = {}
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str | None]] = {}
        self.offsets_come_late = 0
        self.not_elected = 0
        self.has_epochs = True
        self.compacted: set[str] = set()
        self.late_offsets: dict[tuple[str, str, int], tuple[int, str | None]] = {}
        self.lose_answer_to: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.changed = threading.Condition(threading.RLock())
        self._pids = iter(range(1_000, 1_000_000))

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self, topic: str, partition: int, *, create: bool = False) -> Log | None:
        if create and topic not in self.topics:
            self.grow(topic, self.partitions)
        logs = self.topics.get(topic, [])
        return logs[partition] if partition < len(logs) else None

    def grow(self, topic: str, partitions: int) -> None:
        if topic not in self.topics:
            self.ids[topic] = secrets.token_bytes(16)
        logs = self.topics.setdefault(topic, [])
        logs += [Log() for _ in range(partitions - len(logs))]

    def expire(self, topic: str, partition: int, before: int) -> None:
        log = self.topics[topic][partition]
        log.start = before
        log.batches = [one for one in log.batches if one.last >= before]

    def compact_away(self, topic: str, partition: int, offset: int) -> None:
        """Take the batch with *offset* out, as the cleaner does with an empty one."""
        log = self.topics[topic][partition]
        log.batches = [one for one in log.batches if not one.first <= offset <= one.last]

    def end(self, one: Transaction, *, commit: bool) -> None:
        for log in one.logs:
            if one.pid in log.open:
                first = log.open.pop(one.pid)
                log.append(_control_batch(one.pid, one.epoch, commit=commit))
                if not commit:
                    log.aborted.append((one.pid, first, log.end - 1))
        if commit:
            (self.late_offsets if self.offsets_come_late else self.offsets).update(one.offsets)
        one.logs, one.offsets, one.is_open, one.committed = [], {}, False, commit

    def answer(self, key: int, ask: Reader) -> bytes:
        self.before.pop(NAMES.get(key, ""), lambda: None)()
        with self.changed:
            body: bytes = getattr(self, f"_on_{key}")(ask)
            self.changed.notify_all()
            return body

    def _on_0(self, ask: Reader) -> bytes:
        ask.text(), ask.i16(), ask.i32()
        return ask.per_partition(self._produce) + _i32(0)

    def _produce(self, topic: str, ask: Reader) -> bytes:
        number, raw = ask.i32(), ask.blob()
        log = self.log(topic, number, create=True)
        pid, epoch = struct.unpack_from(">qh", raw, 43)
        is_transactional = bool(struct.unpack_from(">h", raw, 21)[0] & 0x10)
        owner = next((one for one in self.transactions.values() if one.pid == pid), None)
        error = UNKNOWN_TOPIC if log is None else _wrong(owner, epoch) if owner else 0
        if not error and is_transactional and (owner is None or log not in owner.logs):
            error = INVALID_TXN_STATE
        if not error and topic in self.compacted and _lacks_key(raw):
            error = INVALID_RECORD
        if error or log is None:
            return _i32(number) + _i16(error) + _i64(-1) + _i64(-1)
        sequence = (pid, epoch, struct.unpack_from(">i", raw, 53)[0])
        if pid >= 0 and sequence in log.sent:
            return _i32(number) + _i16(0) + _i64(log.sent[sequence]) + _i64(-1)
        first = log.sent[sequence] = log.append(raw)
        if is_transactional:
            log.open.setdefault(pid, first)
        return _i32(number) + _i16(0) + _i64(first) + _i64(-1)

    def _on_1(self, ask: Reader) -> bytes:
        ask.i32()
        until = time.monotonic() + ask.i32() / 1_000
        ask.i32(), ask.i32()
        is_committed, start = bool(ask.u8()), ask.at
        while True:
            ask.at, self._found = start, False
            body = ask.per_partition(lambda topic, ask: self._fetch(topic, ask, is_committed))
            if self._found or not self.changed.wait(max(0.0, until - time.monotonic())):
                return _i32(0) + body

    def _fetch(self, topic: str, ask: Reader, is_committed: bool) -> bytes:
        number, offset, most = ask.i32(), ask.i64(), ask.i32()
        log = self.log(topic, number)
        error = UNKNOWN_TOPIC if log is None else 0
        log = log or Log()
        if not error and not log.start <= offset <= log.end:
            error = OUT_OF_RANGE
        end = log.stable_end if is_committed else log.end
        raw, aborted = b"", []
        for one in log.batches if not error else []:
            if one.last >= offset and one.last < end and (not raw or len(raw) < most):
                raw += one.raw
                aborted += [
                    gone for gone in log.aborted if gone[1] <= one.last and gone[2] >= offset
                ]
        self._found |= bool(raw or error)
        listed = [_i64(pid) + _i64(first) for pid, first, _ in dict.fromkeys(aborted)]
        head = _i32(number) + _i16(error) + _i64(log.end) + _i64(log.stable_end)
        return head + _array(listed if is_committed else []) + _i32(len(raw)) + raw

    def _on_2(self, ask: Reader) -> bytes:
        ask.i32()
        is_committed = bool(ask.u8())
        error = self._not_elected(NOT_LEADER)

        def find(topic: str, ask: Reader) -> bytes:
            number, at_ms = ask.i32(), ask.skipped(4).i64()
            log = self.log(topic, number)
            if log is None or error:
                return _i32(number) + _i16(error or UNKNOWN_TOPIC) + _i64(-1) * 2 + _i32(-1)
            offset, found_ms = -1, -1
            if at_ms == -1:
                offset = log.stable_end if is_committed else log.end
            elif at_ms == -2:
                offset = log.start
            else:
                known = ((t, one.first + n) for one in log.batches for n, t in enumerate(one.times))
                found_ms, offset = next((one for one in known if one[0] >= at_ms), (-1, -1))
            epoch = log.epoch if self.has_epochs else -1
            return _i32(number) + _i16(0) + _i64(found_ms) + _i64(offset) + _i32(epoch)

        return _i32(0) + ask.per_partition(find)

    def _not_elected(self, error: int) -> int:
        if not self.not_elected:
            return 0
        self.not_elected -= 1
        return error

    def _on_3(self, ask: Reader) -> bytes:
        """Flexible, see ``_on_9``."""
        ask.u8()
        count = ask.u8()
        named = [(ask.take(16), ask.compact_text(), ask.u8())[1] for _ in range(count - 1)]
        names = named if count else [*self.topics]
        if ask.u8():
            for name in set(names) - set(self.topics):
                self.grow(name, self.partitions)
        node = _i32(1) + _compact_text("127.0.0.1") + _i32(self.port) + b"\0\0"
        head = b"\0" + _i32(0) + _compact_array([node]) + _compact_text("tests") + _i32(1)
        return head + _compact_array([self._described(name) for name in names]) + b"\0"

    def _described(self, topic: str) -> bytes:
        replicas = _compact_array([_i32(1)]) * 2 + _compact_array([])
        partitions = [
            _i16(0) + _i32(number) + _i32(1) + _i32(log.epoch) + replicas + b"\0"
            for number, log in enumerate(self.topics.get(topic, []))
        ]
        error = _i16(0 if topic in self.topics else UNKNOWN_TOPIC)
        known = error + _compact_text(topic) + self.ids.get(topic, bytes(16)) + b"\0"
        return known + _compact_array(partitions) + _i32(-(2**31)) + b"\0"

    def _on_8(self, ask: Reader) -> bytes:
        group = ask.text()
        ask.i32(), ask.text(), ask.i64()
        return self._keep(ask, group, self.offsets)

    def _keep(self, ask: Reader, group: str, into: dict[Any, Any], error: int = 0) -> bytes:
        def keep(topic: str, ask: Reader) -> bytes:
            number = ask.i32()
            into[group, topic, number] = (ask.i64(), ask.text())
            return _i32(number) + _i16(error)

        return ask.per_partition(keep)

    def _on_9(self, ask: Reader) -> bytes:
        """Flexible: compact texts and arrays, and tagged fields, of which there are none."""
        ask.u8()
        group = ask.compact_text()
        asked = [
            (ask.compact_text(), [ask.i32() for _ in range(ask.u8() - 1)], ask.u8())
            for _ in range(ask.u8() - 1)
        ]
        is_stable = bool(ask.u8())
        error = _i16(self._not_elected(NOT_COORDINATOR))
        topics = b""
        for topic, numbers, _ in asked:
            found = [self._kept((group, topic, number), is_stable) for number in numbers]
            topics += _compact_text(topic) + _compact_array(found) + b"\0"
        count = bytes([len(asked) + 1])
        return b"\0" + _i32(0) + count + topics + error + b"\0"

    def _kept(self, key: tuple[str, str, int], is_stable: bool) -> bytes:
        error = 0
        if key in self.late_offsets and is_stable:
            self.offsets_come_late -= 1
            error = UNSTABLE
            if not self.offsets_come_late:
                self.offsets[key] = self.late_offsets.pop(key)
        offset, metadata = self.offsets.get(key, (-1, ""))
        text = _compact_text(metadata or "")
        return _i32(key[2]) + _i64(offset) + _i32(-1) + text + _i16(error) + b"\0"

    def _on_10(self, ask: Reader) -> bytes:
        node = _i32(1) + _text("127.0.0.1") + _i32(self.port)
        return _i32(0) + _i16(0) + _i16(-1) + node

    def _on_21(self, ask: Reader) -> bytes:
        def delete(topic: str, ask: Reader) -> bytes:
            number, offset = ask.i32(), ask.i64()
            self.expire(topic, number, offset)
            return _i32(number) + _i64(offset) + _i16(0)

        return _i32(0) + ask.per_partition(delete)

    def _on_22(self, ask: Reader) -> bytes:
        name = ask.text()
        if not name:
            return _i32(0) + _i16(0) + _i64(next(self._pids)) + _i16(0)
        one = self.transactions.get(name)
        if one is None:
            one = self.transactions[name] = Transaction(next(self._pids))
        else:
            one.epoch += 1
            if one.is_open:
                self.end(one, commit=False)
        one.committed = None
        return _i32(0) + _i16(0) + _i64(one.pid) + _i16(one.epoch)

    def _on_23(self, ask: Reader) -> bytes:
        def find(topic: str, ask: Reader) -> bytes:
            number, epoch = ask.i32(), ask.skipped(4).i32()
            log = self.log(topic, number)
            if log is None:
                return _i16(UNKNOWN_TOPIC) + _i32(number) + _i32(-1) + _i64(-1)
            found = min(epoch, log.epoch)
            return _i16(0) + _i32(number) + _i32(found) + _i64(log.end_of_epoch(found))

        return _i32(0) + ask.per_partition(find)

    def _on_24(self, ask: Reader) -> bytes:
        one, error = self._transaction(ask)

        def add(topic: str, ask: Reader) -> bytes:
            number = ask.i32()
            log = self.log(topic, number, create=True)
            if one and not error and log is not None:
                one.is_open = True
                one.logs.append(log)
            return _i32(number) + _i16(error)

        return _i32(0) + ask.per_partition(add)

    def _on_25(self, ask: Reader) -> bytes:
        one, error = self._transaction(ask)
        if one and not error:
            one.is_open = True
        return _i32(0) + _i16(error)

    def _on_26(self, ask: Reader) -> bytes:
        one, error = self._transaction(ask)
        commit = bool(ask.u8())
        if one and not error and one.is_open:
            self.end(one, commit=commit)
        elif one and not error and one.committed is not commit:
            error = INVALID_TXN_STATE
        return _i32(0) + _i16(error)

    def _on_28(self, ask: Reader) -> bytes:
        name, group = ask.text(), ask.text()
        one = self.transactions.get(name)
        error = _wrong(one, ask.skipped(8).i16())
        into = {} if one is None or error else one.offsets
        return _i32(0) + self._keep(ask, group, into, error)

    def _on_32(self, ask: Reader) -> bytes:
        found = []
        for _ in range(ask.i32()):
            kind, topic = ask.take(1), ask.text()
            for _ in range(max(0, ask.i32())):
                ask.text()
            policy = "compact" if topic in self.compacted else "delete"
            entry = _text("cleanup.policy") + _text(policy) + b"\0\1\0" + _array([])
            found.append(_i16(0) + _i16(-1) + kind + _text(topic) + _array([entry]))
        return _i32(0) + _array(found)

    def _transaction(self, ask: Reader) -> tuple[Transaction | None, int]:
        one = self.transactions.get(ask.text())
        return one, _wrong(one, ask.skipped(8).i16())


class Reader:
    """Reads a request, of which nothing is checked: librdkafka wrote it."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.raw[self.at - size : self.at]

    def skipped(self, size: int) -> Reader:
        self.at += size
        return self

    def i16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def u8(self) -> int:
        """A byte; also a length in "flexible" encoding, as long as it is below 128."""
        return self.take(1)[0]

    def compact_text(self) -> str:
        size, self.at = _uvarint(self.raw, self.at)
        return self.take(size - 1).decode()

    def text(self) -> str:
        return self.take(max(0, self.i16())).decode()

    def blob(self) -> bytes:
        return self.take(max(0, self.i32()))

    def per_partition(self, answer: Callable[[str, Reader], bytes]) -> bytes:
        topics = []
        for _ in range(self.i32()):
            name = self.text()
            topics.append(_text(name) + _array([answer(name, self) for _ in range(self.i32())]))
        return _array(topics)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    broker: Broker


class _Connection(socketserver.StreamRequestHandler):
    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        broker = self.server.broker
        try:
            while size := self.rfile.read(4):
                ask = Reader(self.rfile.read(int.from_bytes(size, "big")))
                key, version, correlation = ask.i16(), ask.i16(), ask.i32()
                ask.text()
                if key == 18:
                    known = [_i16(one) + _i16(a) + _i16(b) for one, (a, b) in VERSIONS.items()]
                    body = _i16(UNSUPPORTED if version else 0) + _array(known)
                else:
                    body = broker.answer(key, ask)
                if NAMES.get(key) in broker.lose_answer_to:
                    broker.lose_answer_to.remove(NAMES[key])
                    return
                self.wfile.write(_i32(len(body) + 4) + _i32(correlation) + body)
        except (ConnectionError, ValueError):
            pass  # The client has gone.


def _wrong(one: Transaction | None, epoch: int) -> int:
    return INVALID_TXN_STATE if one is None else INVALID_EPOCH if epoch != one.epoch else 0


def _control_batch(pid: int, epoch: int, *, commit: bool) -> bytes:
    """https://kafka.apache.org/documentation/#controlbatch"""
    key, value = _i16(0) + _i16(int(commit)), _i16(0) + _i32(0)
    record = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    now = int(time.time() * 1_000)
    checked = (
        _i16(0x30) + _i32(0) + _i64(now) * 2 + _i64(pid) + _i16(epoch) + _i32(-1) + _i32(1)
        + bytes([2 * len(record)]) + record
    )  # fmt: skip
    rest = _i32(0) + b"\2" + struct.pack(">I", _crc32c(checked)) + checked
    return _i64(0) + _i32(len(rest)) + rest


def _crc32c(raw: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _time_deltas(raw: bytes) -> Iterator[int]:
    """Of an uncompressed batch's records; a compressed one's are taken to be of one time."""
    if struct.unpack_from(">h", raw, 21)[0] & 7:
        return
    at = 61
    for _ in range(struct.unpack_from(">i", raw, 57)[0]):
        size, body = _varint(raw, at)
        yield _varint(raw, body + 1)[0]
        at = body + size


def _lacks_key(raw: bytes) -> bool:
    """Whether a record of an uncompressed batch has no key."""
    at = 61
    for _ in range(struct.unpack_from(">i", raw, 57)[0]):
        length, at = _varint(raw, at)
        _, inner = _varint(raw, at + 1)  # Behind its attributes: the time, the offset, the key.
        _, inner = _varint(raw, inner)
        if _varint(raw, inner)[0] < 0:
            return True
        at += length
    return False


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value, at = _uvarint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def _uvarint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte, at = raw[at], at + 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return result, at


def _compact_text(value: str) -> bytes:
    raw, size, head = value.encode(), len(value.encode()) + 1, b""
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + raw


def _compact_array(items: list[bytes]) -> bytes:
    assert len(items) < 0x7F
    return bytes([len(items) + 1]) + b"".join(items)


def _i16(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def _i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _i64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _text(value: str) -> bytes:
    return _i16(len(value.encode())) + value.encode()


def _array(items: list[bytes]) -> bytes:
    return _i32(len(items)) + b"".join(items)
