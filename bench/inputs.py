"""The input of a workload, made once per scale and kept: seeded, so everybody has the same.

keyed-5000000-5000000-3/epochs/00000/part-0.parquet    key bigint, value bigint, ts timestamp
keyed-1000000-5000000-4-text/...                       the same, its keys are UUIDs as text
nexmark-1000000-6/epochs/00000/events-000000.parquet   as bench.nexmark_files
nexmark-1000000-6/flush/events-000000.parquet          a bid a day later, with negative ids
.../about.json                                         rows and changed keys of each epoch
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.nexmark_files import write_parquet
from bench.workloads import NEXMARK_RATE, OUT_OF_ORDER_GROUP, Workload
from sluice.connectors.nexmark.source import NexmarkSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

SEED = 20_261_121
FILES_PER_EPOCH = 4  # Two for each of two cores, so that one may finish earlier.
ROW_GROUP_ROWS = 250_000
LARGEST_VALUE = 1_000_000
FIRST_MS = 1_767_225_600_000  # 2026-01-01
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """``changed`` keys; None where there is no such thing.  On disk the folder is relative."""

    folder: str
    rows: int
    changed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    epochs: tuple[Epoch, ...]
    flush: str | None = None


def make_input(workload: Workload, scale: float, cache: Path) -> Input:
    """Make the input, or find the one that is there already."""
    events = max(1, round(workload.events_per_epoch * scale))
    keys = max(1, round(workload.keys * scale))
    count = workload.warm_up + workload.measured + workload.has_seed
    if workload.kind == "nexmark":
        folder = cache / f"nexmark-{events}-{count}"
    else:
        folder = cache / f"keyed-{keys}-{events}-{count}{'-text' * workload.text_keys}"
    if not (folder / "about.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        made = (
            _nexmark(folder, events, count)
            if workload.kind == "nexmark"
            else _keyed(folder, keys, events, count, text_keys=workload.text_keys)
        )
        # Last: without it the folder is not whole.
        (folder / "about.json").write_text(json.dumps(asdict(made)))
    about = json.loads((folder / "about.json").read_text())
    flush = None if about["flush"] is None else str(folder / about["flush"])
    return Input(
        epochs=tuple(
            Epoch(**(one | {"folder": str(folder / one["folder"])})) for one in about["epochs"]
        ),
        flush=flush,
    )


def _keyed(folder: Path, keys: int, events: int, count: int, *, text_keys: bool) -> Input:
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(SEED)
    epochs = []
    names = pa.array(_uuids(keys) if text_keys else np.arange(keys))
    first_ms = FIRST_MS
    for number in range(count):
        drawn = random.permutation(keys) if number == 0 else random.integers(0, keys, events)
        target = Path("epochs") / f"{number:05}"
        _write_keyed(
            folder / target,
            names.take(pa.array(drawn)),
            random.integers(0, LARGEST_VALUE, len(drawn)),
            first_ms,
        )
        changed = len(np.unique(drawn))
        epochs.append(Epoch(folder=str(target), rows=len(drawn), changed=changed))
        first_ms += len(drawn)
    return Input(epochs=tuple(epochs))


def _uuids(count: int) -> list[str]:
    """UUIDs of version 4, drawn by a generator of their own: the other draws stay as they are."""
    import numpy as np

    drawn = np.random.default_rng(SEED).bytes(16 * count)
    return [
        str(uuid.UUID(bytes=drawn[start : start + 16], version=4))
        for start in range(0, 16 * count, 16)
    ]


def _write_keyed(
    folder: Path, keys: pa.Array, values: npt.NDArray[np.int64], first_ms: int
) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    times = np.arange(first_ms, first_ms + len(keys))
    parts = [np.array_split(column, FILES_PER_EPOCH) for column in (values, times * 1_000)]
    first = 0
    for number, (value, ts) in enumerate(zip(*parts, strict=True)):
        key, first = keys.slice(first, len(value)), first + len(value)
        table = pa.table(
            {"key": key, "value": value, "ts": pa.array(ts).cast(pa.timestamp("us", tz="UTC"))}
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=ROW_GROUP_ROWS)


def _nexmark(folder: Path, events: int, count: int) -> Input:
    whole = NexmarkSource(
        events * count, first_event_rate=NEXMARK_RATE, out_of_order_group_size=OUT_OF_ORDER_GROUP
    )
    staged = folder / "staged"
    files = write_parquet(whole, staged, count * FILES_PER_EPOCH)
    epochs = []
    for number, part in enumerate(_chunks(files, FILES_PER_EPOCH)):
        target = Path("epochs") / f"{number:05}"
        (folder / target).mkdir(parents=True)
        for file in part:
            file.rename(folder / target / file.name)
        epochs.append(Epoch(folder=str(target), rows=events, changed=None))
    staged.rmdir()
    first = folder / epochs[0].folder / files[0].name
    _write_flush(folder / "flush", first, whole.base_time_ms + DAY_MS)
    return Input(epochs=tuple(epochs), flush="flush")


def _write_flush(folder: Path, like: Path, at_ms: int) -> None:
    """An additional bid, later than all others, which completes every window before it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(like)
    bid = {
        "auction": -1,
        "bidder": -1,
        "price": 0,
        "channel": "",
        "url": "",
        "dateTime": at_ms,
    }
    row = {"event_type": 2, "person": None, "auction": None, "bid": bid}
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist([row], schema=schema), folder / like.name)


def _chunks(items: list[Path], size: int) -> Iterator[list[Path]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
