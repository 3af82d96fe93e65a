"""The Nexmark queries in plain SQL over the whole input, run by DuckDB: an engine of its own.

Tables ``person``, ``auction`` and ``bid`` have the fields of the events; times are milliseconds.
"""
# ruff: noqa: S608 - the only SQL here is our own

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

HOT = 10_000  # Ten seconds.
RANKS = {
    "rank1": "price < 10000",
    "rank2": "price BETWEEN 10000 AND 999999",
    "rank3": "price >= 1000000",
}


def _ranked(aggregate: str, name: str) -> str:
    """An aggregate over all bids, and over those of each range of prices."""
    counted = [f"{aggregate} AS total_{name}"]
    counted += [f"{aggregate} FILTER ({of}) AS {rank}_{name}" for rank, of in RANKS.items()]
    return ", ".join(counted)


DAY = "strftime(make_timestamp(dateTime * 1000), '%Y-%m-%d')"
QUERIES = {
    "q1": "SELECT auction, bidder, price * 908 // 1000 AS price, dateTime FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        WITH closed AS (
            SELECT a.id, a.category, max(b.price) AS final FROM auction a
            JOIN bid b ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires
            GROUP BY a.id, a.category)
        SELECT category, sum(final)::BIGINT AS sum_final, count(*) AS auctions,
               avg(final) AS average FROM closed GROUP BY category""",
    "q5": f"""
        WITH hops AS (
            SELECT auction, unnest(range(dateTime // 2000 * 2000 - {HOT} + 2000,
                                         dateTime // 2000 * 2000 + 1, 2000)) AS starttime FROM bid),
        counts AS (SELECT auction, starttime, count(*) AS num FROM hops GROUP BY ALL)
        SELECT auction, num, starttime FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY starttime)""",
    "q7": f"""
        SELECT auction, bidder, price, dateTime FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY dateTime // {HOT})""",
    "q8": f"""
        SELECT DISTINCT p.id, p.name, p.dateTime // {HOT} * {HOT} AS starttime FROM person p
        JOIN auction a ON a.seller = p.id AND a.dateTime // {HOT} = p.dateTime // {HOT}""",
    "q11": f"""
        WITH steps AS (
            SELECT bidder, dateTime, dateTime - lag(dateTime) OVER each >= {HOT} AS is_new FROM bid
            WINDOW each AS (PARTITION BY bidder ORDER BY dateTime)),
        sessions AS (
            SELECT *, sum(coalesce(is_new, true)::INT)
                OVER (PARTITION BY bidder ORDER BY dateTime ROWS UNBOUNDED PRECEDING) AS session
            FROM steps)
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
               max(dateTime) + {HOT} AS endtime FROM sessions GROUP BY bidder, session""",
    "q15": f"""
        SELECT {DAY} AS day, {_ranked("count(*)", "bids")},
               {_ranked("count(DISTINCT bidder)", "bidders")},
               {_ranked("count(DISTINCT auction)", "auctions")} FROM bid GROUP BY day""",
    "q17": f"""
        SELECT auction, {DAY} AS day, {_ranked("count(*)", "bids")}, min(price) AS min_price,
               max(price) AS max_price, sum(price)::BIGINT AS sum_price FROM bid GROUP BY ALL""",
    "q18": """
        SELECT auction, bidder, price, dateTime FROM bid
        QUALIFY row_number() OVER (
            PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC) = 1""",
    "q19": """
        SELECT auction, bidder, price, dateTime,
               row_number() OVER (
                   PARTITION BY auction ORDER BY price DESC, dateTime, bidder) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, a.itemName, a.seller,
               a.category, a.dateTime AS auction_dateTime, a.expires
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
}


def expected(query: str, parquet: Path) -> pl.DataFrame:
    """The result of *query* over the events in the folder *parquet*."""
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for number, name in enumerate(("person", "auction", "bid")):
            engine.execute(
                f"CREATE VIEW {name} AS SELECT unnest({name}) FROM "
                f"read_parquet('{parquet}/*.parquet') WHERE event_type = {number}"
            )
        found: pl.DataFrame = engine.sql(QUERIES[query]).pl()
        return found


def rows_of(frame: pl.DataFrame, columns: list[str]) -> list[tuple[object, ...]]:
    """For comparison: instants as milliseconds, in a certain order."""
    instants = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    plain = frame.with_columns(pl.col(instants).dt.epoch("ms")).select(columns)
    return sorted(plain.rows(), key=repr)
