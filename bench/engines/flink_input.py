"""The input and output of the Flink jobs: rows of big-endian longs, and SQL.

A key that is text has the width of a UUID, and is as many longs as it fills; the job makes a string
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.workloads import TEXT_KEY_BYTES, Workload

if TYPE_CHECKING:
    import polars as pl

QUESTION = -(2**63)  # As in Steps.java.

KEYED_FIELDS = ("key", "value", "ts")
TEXT_KEY_LONGS = -(-TEXT_KEY_BYTES // 8)
TEXT_KEY_FIELDS = tuple(f"key{number}" for number in range(TEXT_KEY_LONGS))
NEXMARK_FIELDS = (
    *("event_type", "id", "auction", "bidder", "price", "at_ms", "expires", "category"),
)

QUERIES = {
    "q4": """
        SELECT category, SUM(final) AS sum_final, COUNT(*) AS auctions
        FROM (
            SELECT MAX(b.price) AS final, a.category
            FROM (SELECT id, category, at_ms, expires FROM events WHERE event_type = 1) AS a,
                 (SELECT auction, price, at_ms FROM events WHERE event_type = 2) AS b
            WHERE a.id = b.auction AND b.at_ms BETWEEN a.at_ms AND a.expires
            GROUP BY a.id, a.category
        )
        GROUP BY category
    """,
    "q5": """
        WITH bids AS (SELECT * FROM events WHERE event_type = 2),
        counts AS (
            SELECT auction, COUNT(*) AS num, window_start, window_end
            FROM TABLE(
                HOP(TABLE bids, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
            )
            GROUP BY auction, window_start, window_end
        )
        SELECT counts.auction, counts.num, counts.window_start
        FROM counts JOIN (
            SELECT MAX(num) AS best, window_start, window_end
            FROM counts
            GROUP BY window_start, window_end
        ) AS best
        ON counts.window_start = best.window_start AND counts.window_end = best.window_end
            AND counts.num >= best.best
    """,
    "q11": """
        SELECT bidder, COUNT(*), SESSION_START(event_time, INTERVAL '10' SECOND),
            SESSION_END(event_time, INTERVAL '10' SECOND)
        FROM events
        WHERE event_type = 2
        GROUP BY bidder, SESSION(event_time, INTERVAL '10' SECOND)
    """,
    "q18": """
        SELECT auction, bidder, price, at_ms
        FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction ORDER BY at_ms DESC, price DESC
            ) AS place
            FROM events
            WHERE event_type = 2
        )
        WHERE place <= 1
    """,
}

# By what the last change is the result.  Where windows are closed once, every row is one.
KEYS = {"q4": ["category"], "q18": ["auction", "bidder"]}


def fields_of(workload: Workload) -> tuple[str, ...]:
    if workload.kind == "nexmark":
        return NEXMARK_FIELDS
    return (*TEXT_KEY_FIELDS, *KEYED_FIELDS[1:]) if workload.text_keys else KEYED_FIELDS


def write_rows(folder: str, to: Path, workload: Workload) -> int:
    """Write each Parquet file of *folder* as rows of longs; return the number of rows."""
    import polars as pl

    to.mkdir(parents=True)
    rows = 0
    for path in sorted(Path(folder).iterdir()):
        table = pl.read_parquet(path)
        if workload.kind == "nexmark":
            table = _flat(table)
        if workload.text_keys:
            table = _text_as_longs(table)
        rows += table.height
        _write(table.select(fields_of(workload)), to / f"{path.stem}.bin")
    return rows


def write_questions(folder: str, to: Path, workload: Workload) -> int:
    """A row for each key of the epoch that brought all keys; the job answers with its state."""
    import polars as pl

    to.mkdir(parents=True)
    keys = pl.read_parquet(sorted(Path(folder).iterdir()), columns=["key"])
    rows = keys.select("key", value=pl.lit(QUESTION), ts=pl.lit(0))
    if workload.text_keys:
        rows = _text_as_longs(rows)
    _write(rows.select(fields_of(workload)), to / "questions.bin")
    return rows.height


def read_result(folder: Path, workload: Workload) -> pl.DataFrame:
    import numpy as np
    import polars as pl

    columns: Sequence[str] = workload.result
    if workload.text_keys:
        columns = (*TEXT_KEY_FIELDS, *workload.result[1:])
    parts = [
        np.fromfile(path, ">i8").astype("i8").reshape(-1, len(columns))
        for path in sorted(folder.glob("*.bin"))
    ]
    table = pl.DataFrame(np.concatenate(parts), schema=list(columns), orient="row")
    if workload.text_keys:
        return _longs_as_text(table)
    keys = KEYS.get(workload.query)
    return table.unique(keys, keep="last", maintain_order=True) if keys else table


def _flat(events: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    bid, auction, person = (pl.col(name).struct.field for name in ("bid", "auction", "person"))
    return events.select(
        pl.col("event_type").cast(pl.Int64),
        id=pl.coalesce(auction("id"), person("id")),
        auction=bid("auction"),
        bidder=bid("bidder"),
        price=bid("price"),
        at_ms=pl.coalesce(bid("dateTime"), auction("dateTime"), person("dateTime")),
        expires=auction("expires"),
        category=auction("category"),
    ).fill_null(0)


def _text_as_longs(table: pl.DataFrame) -> pl.DataFrame:
    import numpy as np
    import polars as pl

    keys = table["key"].to_numpy().astype(f"S{8 * TEXT_KEY_LONGS}")
    longs = np.frombuffer(keys.tobytes(), ">i8").reshape(-1, TEXT_KEY_LONGS).astype("i8")
    return pl.DataFrame(longs, schema=list(TEXT_KEY_FIELDS), orient="row").hstack(table.drop("key"))


def _longs_as_text(table: pl.DataFrame) -> pl.DataFrame:
    import numpy as np
    import polars as pl

    longs = np.ascontiguousarray(table.select(TEXT_KEY_FIELDS).to_numpy()).astype(">i8")
    keys = np.frombuffer(longs.tobytes(), f"S{8 * TEXT_KEY_LONGS}").astype(str)
    return table.drop(TEXT_KEY_FIELDS).insert_column(0, pl.Series("key", keys))


def _write(table: pl.DataFrame, path: Path) -> None:
    import numpy as np
    import polars as pl

    rows = table.select(pl.all().cast(pl.Int64)).to_numpy()
    np.ascontiguousarray(rows).astype(">i8").tofile(path)
