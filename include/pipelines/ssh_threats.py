"""SSH password guessing: addresses with at least five failures within ten minutes.

threat_log ─> parse ─> allowlist_filter ─> window_rule ─> alerts
             allowlist ──────┘
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

from sluice import Checkpointing, Pipeline, Tumbling, param
from sluice import aggregates as agg
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SYSLOG = r"^(\w{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ sshd\S*?\[\d+\]: (.*)$"
FAILED = (
    r"^(?:message repeated (\d+) times: \[ )?"
    r"Failed password for (?:invalid user )?(.*?) from (\S+) port \d+"
)


def parse_sshd(lines: DataFrame, *, since: str, year: str = "") -> DataFrame:
    """Failed passwords: time, address, user and count.

    Classic syslog lines lack the year: each line gets the first year in which it is not before the
    day *since*, or the beginning of *year*.  Lines of other programs go to the side output, with
    their file and number.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    stamp = F.regexp_extract("line", SYSLOG, 1)
    first = _first_day(f"{year}-01-01" if year else since)
    this_year, next_year = (
        F.try_to_timestamp(
            F.concat(F.lit(f"{of} "), F.regexp_replace(stamp, " +", " ")),
            F.lit("yyyy MMM d HH:mm:ss"),
        )
        for of in (first.year, first.year + 1)
    )
    at = F.coalesce(
        F.when(this_year >= F.lit(first), this_year), next_year, F.try_to_timestamp(stamp)
    )
    message = F.regexp_extract("line", SYSLOG, 2)
    reason = F.when(F.trim("line") == "", None).when(at.isNull(), F.lit("not a line of sshd"))
    repeated = F.regexp_extract(message, FAILED, 1)
    return (
        lines.withColumn("at", at)
        .withColumn("_malformed", reason)
        .withColumn("source_ip", F.regexp_extract(message, FAILED, 3))
        .withColumn("user", F.regexp_extract(message, FAILED, 2))
        .withColumn("failures", F.when(repeated == "", 1).otherwise(repeated.cast("long")))
        .where("_malformed IS NOT NULL OR source_ip != ''")
        .select("_source", "_malformed", "line", "at", "source_ip", "user", "failures")
    )


def _first_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"no line of the log is older than {text!r}, which is no day; write since=2026-03-01, "
            "or year=2026"
        ) from error


pipeline = Pipeline(
    "ssh_threats",
    checkpointing=Checkpointing(interval=timedelta(seconds=5), max_records_per_epoch=500),
    description="Password guessing against sshd: sources of 5 or more failures in 10 minutes.",
)

threat_log = pipeline.source(
    "threat_log",
    Files(param("input", is_path=True, help="the sshd log: a file, a folder or an s3:// URI")),
    event_time="at",
    out_of_orderness=timedelta(seconds=5),
)
allowlist = pipeline.source(
    "allowlist",
    Files(param("allowlist", is_path=True, help="a file with an IP address on each line")),
    table=True,
)

alerts = (
    threat_log.transform(
        "parse",
        parse_sshd,
        since=param("since", default="2015-03-01", help="no line is older: 2026-03-01"),
        year=param("year", required=False, help="the year of the log, instead of since"),
    )
    .lookup("allowlist_filter", allowlist, on={"source_ip": "trim(line)"}, keep="unmatched")
    .key_by("source_ip")
    .window(
        "window_rule",
        Tumbling(timedelta(minutes=10)),
        failed=agg.sum("failures"),
        users=agg.count_distinct("user"),
    )
    .where("failed >= 5")
    .select("source_ip", "window_start", "failed", "users")
)
alerts.sink("alerts", FilesTable(param("alerts_table", required=False, is_path=True)))
