"""``sluice tables``, ``compare``, ``orphans`` and ``gc``: tables, and what nothing names.

Files of tables are merged, old ones and orphans are reported or deleted.

``sluice compare`` reads two tables into memory and compares them row by row, as when a pipeline
takes a script's place: a folder of Parquet files, with columns in the names of its folders or
without, or a ``FilesTable`` by its location.  It ends with DIFFERENT unless they are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    print_json,
    print_line,
    print_table,
)
from sluice.coordinator.garbage import (
    IncompleteSavepoint,
    Orphan,
    Orphans,
    Reason,
    collect_garbage,
    find_orphans,
)
from sluice.coordinator.record import load_files_in_use
from sluice.core.ids import NO_GENERATION
from sluice.core.units import size
from sluice.declaration.durations import duration_of, milliseconds
from sluice.declaration.places import VersionedSink
from sluice.errors import ConfigurationError
from sluice.job.job import Job, never_submitted_message
from sluice.job.places import open_sinks
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    import polars as pl


DEFAULT_TARGET_MB = 128
DEFAULT_GRACE = "1h"  # The garbage collector's own default.

SinkName: TypeAlias = Annotated[
    str, typer.Argument(help="The uid of a FilesTable, or STAGE.late or STAGE.malformed.")
]
Grace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--grace", help="Leave what is younger, by the store's clock: 90s, 30m, 1h, 2d, or 0s."
    ),
]


class ReasonRecord(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    description: str
    files: int
    size_bytes: int


class GarbageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``; ``deleted``: whether ``files``, which only ``gc`` has, are gone."""

    pipeline: str
    root: str
    deleted: bool
    total_files: int
    total_bytes: int
    reasons: list[ReasonRecord]
    too_young: list[ReasonRecord]
    incomplete_savepoints: Sequence[IncompleteSavepoint]
    of_others: Sequence[str]
    unknown: Sequence[str]
    expiring: Sequence[str]
    files: Sequence[Mapping[str, object]] | msgspec.UnsetType = msgspec.UNSET


def show_versions(
    job: Job,
    sink: SinkName,
    as_json: AsJson = False,
) -> None:
    """Show the versions of SINK's table, oldest first, and what a reader reads now."""
    table = _table(job, sink)
    now, versions = table.size(), table.described_versions()
    if as_json:
        print_json({"sink": sink, **asdict(now), "versions": versions})
        return
    shown = Table("version", "continues", "files", "rows", "size", "")
    for one in versions:
        remarks = {"rolled back": not one.in_table, "merged": one.compacted}
        shown.add_row(
            str(one.version),
            str(one.parent or "nothing"),
            f"{one.files:,}",
            f"{one.rows:,}",
            size(one.size_bytes),
            ", ".join(remark for remark, holds in remarks.items() if holds),
        )
    print_table(shown)
    print_line(
        f"{now.root} as of {now.version or 'nothing'}: {now.files:,} files, {now.rows:,} rows, "
        f"{size(now.size_bytes)}"
    )


def compact(
    job: Job,
    sink: SinkName,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, help="How large a file is to be, in megabytes.")
    ] = DEFAULT_TARGET_MB,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of SINK's table; no version changes, and nothing is deleted."""
    table = _table(job, sink)
    before = table.size().files
    made = table.compact(target_bytes=target_mb * 1_000_000)
    version = None if made is None else made.checkpoint_id
    files = before if made is None else len(made.files)
    if as_json:
        print_json({"version": version, "files_before": before, "files": files})
    elif version is None:
        print_line("nothing to do: the newest version is merged")
    else:
        print_line(
            f"version {version}: {before:,} files are {files:,} now; 'sluice tables vacuum' "
            "deletes the old ones"
        )


def vacuum(
    job: Job,
    sink: SinkName,
    keep_versions: Annotated[
        int, typer.Option("--keep-versions", min=1, help="So many of the newest stay readable.")
    ],
    grace: Annotated[
        str,
        typer.Option("--grace", help="Rely on merged files of that age only: 90s, 10m, or 0s."),
    ] = "10m",
    as_json: AsJson = False,
) -> None:
    """Delete versions of SINK's table but the newest, and those that checkpoints or savepoints pin.

    Older versions can no longer be read.  A savepoint that was copied to another root is not known
    here; what it pins may go.
    """
    table = _table(job, sink)
    lineage = table.lineage()
    if not lineage:
        raise ConfigurationError(f"the table of sink {sink!r} has no version yet")
    pinned = load_files_in_use(job).versions(sink)
    before = min([lineage[-keep_versions:][0], *pinned])
    freed = table.vacuum(before, grace_ms=milliseconds(duration_of("--grace", grace)))
    if as_json:
        print_json({"before_version": before, **asdict(freed)})
        return
    print_line(
        f"{len(freed.versions):,} versions before {before} are gone, and {freed.files:,} files, "
        f"{size(freed.size_bytes)}"
    )


def _table(job: Job, sink: str) -> VersionedSink:
    state = job.state()
    if state.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted_message(job))
    sinks = open_sinks(job, state.configuration.params)
    if sink not in sinks:
        raise ConfigurationError(
            f"pipeline {job.pipeline.uid!r} has no sink {sink!r}; it has {', '.join(sinks)}"
        )
    table = sinks[sink]
    if not isinstance(table, VersionedSink):
        raise ConfigurationError(f"sink {sink!r} is no FilesTable; only those have versions here")
    return table


def orphans(
    job: Job,
    grace: Grace = DEFAULT_GRACE,
    as_json: AsJson = False,
) -> None:
    """Report what 'sluice gc' would delete, by kind, and incomplete savepoints; delete nothing."""
    found = find_orphans(job, grace_ms=milliseconds(duration_of("--grace", grace)))
    if as_json:
        print_json(_report(job, found, deleted=False))
        return
    _print_orphans(found, "would be deleted by 'sluice gc'")


def gc(
    job: Job,
    grace: Grace = DEFAULT_GRACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every file; delete nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what no retained checkpoint, savepoint, pending checkpoint or table needs."""
    found = collect_garbage(
        job, grace_ms=milliseconds(duration_of("--grace", grace)), dry_run=dry_run
    )
    if as_json:
        report = _report(job, found, deleted=not dry_run)
        files = [
            {
                "key": one.key,
                "sink": one.sink,
                "size_bytes": one.size_bytes,
                "reason": one.reason.name,
            }
            for one in found.files
        ]
        print_json(msgspec.structs.replace(report, files=files))
        return
    if dry_run:
        for one in found.files:
            place = f"{one.key} of sink {one.sink}" if one.sink else one.key
            typer.echo(f"{place} ({size(one.size_bytes)})")
    _print_orphans(found, "would be deleted" if dry_run else "deleted")


def _report(job: Job, found: Orphans, *, deleted: bool) -> GarbageReport:
    return GarbageReport(
        pipeline=job.pipeline.uid,
        root=job.store.root,
        deleted=deleted,
        total_files=len(found.files),
        total_bytes=found.total_bytes,
        reasons=_by_reason(found.files),
        too_young=_by_reason(found.too_young),
        incomplete_savepoints=found.incomplete_savepoints,
        of_others=found.of_others,
        unknown=found.unknown,
        expiring=found.expiring,
    )


def _by_reason(files: Sequence[Orphan]) -> list[ReasonRecord]:
    sizes = {reason: [one.size_bytes for one in files if one.reason is reason] for reason in Reason}
    return [
        ReasonRecord(
            reason=reason.name, description=reason.value, files=len(found), size_bytes=sum(found)
        )
        for reason, found in sizes.items()
        if found
    ]


def _print_orphans(found: Orphans, what_happens: str) -> None:
    if found.files:
        table = Table("what", "files", "size")
        for record in _by_reason(found.files):
            table.add_row(record.description, f"{record.files:,}", size(record.size_bytes))
        print_table(table)
    lines = [f"{len(found.files):,} files, {size(found.total_bytes)}: {what_happens}"]
    if found.too_young:
        lines.append(f"{len(found.too_young):,} more are within the grace period")
    lines += [
        f"savepoint {one.name} is incomplete ({one.files:,} files, {size(one.size_bytes)}): its "
        "writer died, or is at work; 'sluice dispose' deletes it"
        for one in found.incomplete_savepoints
    ]
    lines += [
        f"{file} was staged by another job, or before this root was emptied; it stays"
        for file in found.of_others
    ]
    lines += [f"{key} has no name that sluice writes; it stays" for key in found.unknown]
    lines += [
        f"the table of sink {uid} has more versions than num_retained_versions: gc vacuums it, if "
        "it is this job's; 'sluice tables show' lists them"
        for uid in found.expiring
    ]
    for line in lines:
        print_line(line)


DIFFERENT = 2  # The exit code; 1 is that of a mistake.
MOST_SHOWN = 5
_RIGHT, _COPIES = "\0right", "\0copies"  # Which no column is called.


def compare_tables(
    table_a: Annotated[str, typer.Argument(help="A folder of Parquet files, or a FilesTable's.")],
    table_b: Annotated[str, typer.Argument(help="The other one.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A column that identifies a row; repeat it.")
    ] = None,
    as_json: AsJson = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Compare two tables: rows that TABLE_B lacks, has besides, or has otherwise.

    Times are compared to the microsecond, as stages have them.
    """
    keys = tuple(dict.fromkeys(key or ()))
    a, b = (_read(place, keys, endpoint_url) for place in (table_a, table_b))
    found = _compared(a, b, keys)
    if as_json:
        print_json(found)
    else:
        for line in _lines_of(found):
            print_line(line)
    if not found.are_equal:
        raise typer.Exit(DIFFERENT)


def _read(place: str, keys: tuple[str, ...], endpoint_url: str | None) -> pl.DataFrame:
    from sluice.state.segments import to_frame

    root = place if "://" in place else f"file://{Path(place).resolve()}"
    location = StoreLocation(root=root, endpoint_url=endpoint_url)
    table = FilesTable(upsert_key=keys).open("compared", {}, location)
    if table.size().version is not None:
        return to_frame(table.read())
    import pyarrow as pa

    source = Files(place, "parquet").open({}, endpoint_url)
    try:
        plan = source.plan((), max_records=None, parallelism=1)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; 'sluice compare' reads Parquet files and FilesTables"
        ) from error
    source = source.settled(entry.partition for entry in plan.position)
    batches = [batch for piece in plan.slices for batch in source.read(piece)]
    return to_frame(pa.Table.from_batches(batches, source.schema()))


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by their key, or, without a key, by all columns; ``*_columns`` are in one table alone.

    ``examples`` are some of the keys, or rows, that are not the same.
    """

    rows_a: int
    rows_b: int
    missing: int
    extra: int
    different: int
    missing_columns: tuple[str, ...]
    extra_columns: tuple[str, ...]
    different_columns: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def are_equal(self) -> bool:
        return not (
            self.missing
            or self.extra
            or self.different
            or self.missing_columns
            or self.extra_columns
        )


def _compared(a: pl.DataFrame, b: pl.DataFrame, keys: Sequence[str]) -> Comparison:
    """Raises ConfigurationError if a table lacks a key, or has two rows of one; or if they have no
    column in common, or one of types that cannot be compared.
    """
    import polars as pl

    for frame, name in ((a, "the first table"), (b, "the second table")):
        for key in keys:
            if key not in frame.columns:
                raise ConfigurationError(
                    f"{name} has no column {key!r} for --key; it has {', '.join(frame.columns)}"
                )
        if keys and (twice := frame.filter(pl.struct(keys).is_duplicated())).height:
            row = _shown(twice.select(keys).row(0, named=True))
            raise ConfigurationError(
                f"{name} has several rows of {row}, so --key does not identify a row; add columns, "
                "or leave --key out"
            )
    shared = [name for name in a.columns if name in b.columns]
    if not shared:
        raise ConfigurationError(
            f"the tables have no column in common: {', '.join(a.columns)} and "
            f"{', '.join(b.columns)}; name two that have"
        )
    kinds = {name: _common_type(name, a.schema[name], b.schema[name]) for name in shared}
    by = list(keys) or shared
    try:
        left, right = (_counted(frame.select(shared).cast(kinds), by) for frame in (a, b))  # type: ignore[arg-type]
    except pl.exceptions.InvalidOperationError as error:
        raise ConfigurationError(
            "one table has a value which the type of the other table cannot hold "
            f"({str(error).partition(chr(10))[0]}); write both with the same types"
        ) from error
    joined = left.join(
        right, on=by, how="full", nulls_equal=True, coalesce=True, suffix=_RIGHT
    ).with_columns(pl.col(_COPIES, f"{_COPIES}{_RIGHT}").fill_null(0))
    surplus = pl.col(_COPIES) - pl.col(f"{_COPIES}{_RIGHT}")
    lacking, besides = joined.filter(surplus > 0), joined.filter(surplus < 0)
    values = [name for name in shared if name not in by]
    differs = [pl.col(name).ne_missing(pl.col(f"{name}{_RIGHT}")).alias(name) for name in values]
    both = joined.filter(surplus == 0)
    other = both.filter(pl.any_horizontal(differs)) if differs else both.clear()
    found = {"missing": lacking, "extra": besides, "different": other}
    return Comparison(
        rows_a=a.height,
        rows_b=b.height,
        missing=int(lacking.select(surplus.sum()).item() or 0),
        extra=-int(besides.select(surplus.sum()).item() or 0),
        different=other.height,
        missing_columns=tuple(name for name in a.columns if name not in shared),
        extra_columns=tuple(name for name in b.columns if name not in shared),
        different_columns=tuple(
            name for name, one in zip(values, differs, strict=True) if other.filter(one).height
        ),
        examples=tuple(
            f"{how}: {_shown(row)}"
            for how, frame in found.items()
            for row in frame.select(by).sort(by).head(MOST_SHOWN).to_dicts()
        ),
    )


def _lines_of(found: Comparison) -> list[str]:
    if found.are_equal:
        return [f"the tables are equal: {found.rows_a} rows"]
    lines = [f"the first table has {found.rows_a} rows, the second {found.rows_b}"]
    lines += [f"column {name!r} is missing in the second" for name in found.missing_columns]
    lines += [f"column {name!r} is in the second alone" for name in found.extra_columns]
    lines.append(
        f"rows missing in the second: {found.missing}; extra: {found.extra}; "
        f"different: {found.different}"
    )
    if found.different_columns:
        lines.append(f"they differ in {', '.join(found.different_columns)}")
    return lines + [f"  {example}" for example in found.examples]


def _common_type(name: str, a: pl.DataType, b: pl.DataType) -> pl.DataType:
    """The type that has the values of both; units of time and digits are no difference."""
    import polars as pl

    if a == b:
        return a
    match a, b:
        case pl.Datetime(), pl.Datetime() if a.time_zone == b.time_zone:
            return min(a, b, key=lambda kind: ("ns", "us", "ms").index(kind.time_unit))
        case pl.Decimal(), pl.Decimal():
            return pl.Decimal(38, max(a.scale, b.scale))
        case _ if (a.is_integer() and b.is_integer()) or (a.is_float() and b.is_float()):
            return pl.Int128() if a.is_integer() else pl.Float64()
        case _:
            raise ConfigurationError(
                f"column {name!r} is {a} in the first table and {b} in the second, which cannot be "
                "compared; write one as the other"
            )


def _counted(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    return frame.group_by(by).agg(pl.len().cast(pl.Int64).alias(_COPIES), pl.all().first())


def _shown(row: dict[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row.items())
