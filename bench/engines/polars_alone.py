"""The limit: Polars over the same files, in memory, without durable state or restores.

It is no peer, as it keeps its state in one process that must not fail, but shows how far the
engines are from the speed of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.protocol import Meter, Report, Request
from bench.workloads import Workload

if TYPE_CHECKING:
    import polars as pl

GAP_MS = 10_000  # q11
WINDOW_MS, SLIDE_MS = 10_000, 2_000  # q5

# Below this part of the state it is cheaper to look for the touched keys than to group all.
SMALL = 10


def refusal(workload: Workload) -> str | None:
    return "keeps nothing to restore from" if workload.kind == "restore" else None


def run(request: Request) -> Report:
    """Run the workload; the parent process has set ``POLARS_MAX_THREADS``."""
    return _keyed(request) if request.spec.kind == "keyed" else _nexmark(request)


def _keyed(request: Request) -> Report:
    import polars as pl

    meter = Meter()
    key = pl.String if request.spec.text_keys else pl.Int64
    state = pl.DataFrame(schema={"key": key, "count": pl.Int64, "sum": pl.Int64, "max": pl.Int64})
    for folder in request.epochs:
        rows = _scan([folder])
        with meter.epoch(_count([folder])):
            changed = (
                rows.group_by("key")
                .agg(
                    count=pl.len().cast(pl.Int64),
                    sum=pl.col("value").sum(),
                    max=pl.col("value").max(),
                )
                .collect()
            )
            state = _merged(state, changed)
    return Report(epochs=tuple(meter.records), result=_written(state, request))


def _merged(state: pl.DataFrame, changed: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    kept = None
    if changed.height * SMALL < state.height:
        kept = state.join(changed, on="key", how="anti")
        state = state.join(changed, on="key", how="semi")
    merged = (
        pl.concat([state, changed])
        .group_by("key")
        .agg(pl.col("count").sum(), pl.col("sum").sum(), pl.col("max").max())
    )
    return merged if kept is None else pl.concat([kept, merged])


def _nexmark(request: Request) -> Report:
    """One query over all epochs at once, after one over the first as a warm-up."""
    meter = Meter()
    queries = {"q4": _q4, "q5": _q5, "q11": _q11, "q18": _q18}
    query = queries[request.spec.query]
    warm_up = request.spec.warm_up
    with meter.epoch(_count(request.epochs[:warm_up])):
        query(_scan(request.epochs[:warm_up])).collect()
    with meter.epoch(_count(request.epochs)):
        result = query(_scan(request.epochs)).collect()
    return Report(epochs=tuple(meter.records), result=_written(result, request))


def _q4(events: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    bids = _records(events, "bid").select("auction", "price", "dateTime")
    auctions = _records(events, "auction").select(
        "id", "category", opened=pl.col("dateTime"), closed=pl.col("expires")
    )
    return (
        bids.join(auctions, left_on="auction", right_on="id")
        .filter(pl.col("dateTime").is_between(pl.col("opened"), pl.col("closed")))
        .group_by("auction", "category")
        .agg(final=pl.col("price").max())
        .group_by("category")
        .agg(sum_final=pl.col("final").sum(), auctions=pl.len().cast(pl.Int64))
    )


def _q5(events: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    newest = pl.col("dateTime") // SLIDE_MS * SLIDE_MS
    counts = (
        _records(events, "bid")
        .group_by("auction", starttime=newest)
        .agg(bids=pl.len().cast(pl.Int64))
        # A bid is in the window that starts last before it, and in the four before that.
        .with_columns(back=pl.lit([n * SLIDE_MS for n in range(WINDOW_MS // SLIDE_MS)]))
        .explode("back")
        .group_by("auction", starttime=pl.col("starttime") - pl.col("back"))
        .agg(num=pl.col("bids").sum())
    )
    return counts.filter(pl.col("num") == pl.col("num").max().over("starttime"))


def _q11(events: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    waited = pl.col("dateTime").diff().over("bidder").fill_null(0)
    return (
        _records(events, "bid")
        .select("bidder", "dateTime")
        .sort("bidder", "dateTime")
        .with_columns(session=(waited > GAP_MS).cast(pl.Int32).cum_sum().over("bidder"))
        .group_by("bidder", "session")
        .agg(
            bid_count=pl.len().cast(pl.Int64),
            starttime=pl.col("dateTime").min(),
            endtime=pl.col("dateTime").max() + GAP_MS,
        )
        .drop("session")
    )


def _q18(events: pl.LazyFrame) -> pl.LazyFrame:
    return (
        _records(events, "bid")
        .select("auction", "bidder", "price", "dateTime")
        .sort("dateTime", "price")
        .unique(["auction", "bidder"], keep="last", maintain_order=True)
    )


def _records(events: pl.LazyFrame, kind: str) -> pl.LazyFrame:
    import polars as pl

    event_type = {"person": 0, "auction": 1, "bid": 2}[kind]
    return events.filter(pl.col("event_type") == event_type).select(kind).unnest(kind)


def _scan(folders: list[str] | tuple[str, ...]) -> pl.LazyFrame:
    import polars as pl

    return pl.scan_parquet([path for folder in folders for path in sorted(Path(folder).iterdir())])


def _count(folders: list[str] | tuple[str, ...]) -> int:
    import polars as pl

    return int(_scan(folders).select(pl.len()).collect().item())


def _written(result: pl.DataFrame, request: Request) -> str:
    path = Path(request.work) / "result.parquet"
    result.select(request.spec.result).write_parquet(path)
    return str(path)
