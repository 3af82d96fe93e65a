"""Places that take Arrow's tables: a folder of Parquet, a table of Iceberg."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.connectors.iceberg.declared_source import IcebergTable
from sluice.sources import Files
from tests.iceberg_catalog import a_catalog, properties
from tests.spark.ways import kinds as of
from tests.spark.ways.kinds import Choices, Kind, Kinds

NESTED = pa.struct(
    [
        ("a", pa.int32()),
        ("text", pa.string()),
        ("list", pa.list_(pa.struct([("at", of.UTC), ("real", pa.float64())]))),
    ]
)
STRUCTS = (
    {"a": 1, "text": "", "list": []},
    {"a": None, "text": None, "list": None},
    {"a": -of.I32 - 1, "text": "\0", "list": [None, {"at": -1, "real": -0.0}]},
)
LISTS: tuple[Any, ...] = ([], [None], [of.I32, -of.I32 - 1], [0] * 1_000)
MAPS: tuple[Any, ...] = ([], [("", None)], [("a", -of.I64 - 1), ("ü", of.I64), ("a b", 0)])
DEEP_MAPS: tuple[Any, ...] = ([], [(1, {"at": -1, "tags": [("x", b"\0")]})], [(-1, None)])
DEEP = pa.struct([("at", of.UTC), ("tags", pa.map_(pa.string(), pa.binary()))])


def plain(kind: pa.DataType, *values: Any) -> Kind:
    return Kind(kind, kind, values)


COMMON: dict[str, Kind] = {
    "int": plain(pa.int32(), *of.INTS),
    "long": plain(pa.int64(), *of.LONGS),
    "float": plain(pa.float32(), *of.FLOATS),
    "double": plain(pa.float64(), *of.DOUBLES),
    "truth": plain(pa.bool_(), True, False),
    "decimal": plain(of.DECIMAL, *of.DECIMALS),
    "wide decimal": plain(pa.decimal128(38, 0), *of.WIDE),
    "text": plain(pa.string(), *of.WITH_NUL),
    "bytes": plain(pa.binary(), *of.BYTES),
    "fixed": Kind(pa.binary(4), pa.binary(), (b"\0" * 4, b"abcd")),
    "list": plain(pa.list_(pa.int32()), *LISTS),
    "struct": plain(NESTED, *STRUCTS),
    "map": plain(pa.map_(pa.string(), pa.int64()), *MAPS),
    "deep map": plain(pa.map_(pa.int32(), DEEP), *DEEP_MAPS),
    "map of lists": plain(pa.map_(pa.string(), pa.list_(pa.int32())), [("a", [1, None]), ("", [])]),
}  # fmt: skip
PARQUET: dict[str, Kind] = {
    **COMMON,
    "day": plain(pa.date32(), *of.ALL_DAYS),
    "at": plain(of.UTC, *of.ALL_MICROS),
    "local": Kind(of.LOCAL, of.UTC, of.ALL_MICROS),
    "nanos": Kind(pa.timestamp("ns"), of.UTC, (1_001, -1_000, 0), (1, -1, 0)),
    "byte": plain(pa.int8(), -128, 127, 0),
    "u64": Kind(pa.uint64(), pa.decimal128(20, 0), (0, 2**64 - 1)),
    "maps": plain(pa.list_(pa.map_(pa.string(), pa.int64())), [], [None, *MAPS]),
}
ICEBERG: dict[str, Kind] = {
    **COMMON,
    "day": plain(pa.date32(), *of.DAYS),
    "at": plain(of.UTC, *of.MICROS),
    "local": Kind(of.LOCAL, of.UTC, of.MICROS),
}
HOSTILE = (
    "select", "Upper", "a b", "a.b", "it's", 'dou"ble', "back`tick", "ü😀", "100%", "a,b",
    "1st", "new\nline", "a{b}", "$1", "^n", "#?&=/", "_1", "key", "value", "true", "NULL",
    "x" * 200,
)  # fmt: skip


def table_of(kinds: Kinds, choices: Choices, rows: range) -> pa.Table:
    columns = {
        name: pa.array([kind.written(choices[name][row]) for row in rows], kind.declared)
        for name, kind in kinds.items()
    }
    return pa.table({"n": pa.array(rows, pa.int64()), **columns})


class ParquetFolder:
    names = HOSTILE
    kinds = PARQUET

    def __init__(self, folder: Path) -> None:
        self.folder = folder / secrets.token_hex(4)

    def create(self, kinds: Kinds) -> Files:
        self.folder.mkdir()
        return Files(str(self.folder), format="parquet", bounded=False)

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        table = table_of(kinds, choices, rows)
        for half in (table[: len(table) // 2], table[len(table) // 2 :]):
            name = f"{len([*self.folder.iterdir()]):03} a+b%20[1].parquet"
            pq.write_table(half, self.folder / name, row_group_size=2)


class Iceberg:
    names = HOSTILE
    kinds = ICEBERG

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "iceberg"
        self.table = f"shop.{secrets.token_hex(4)}"

    def create(self, kinds: Kinds) -> IcebergTable:
        given = properties(self.folder)
        catalog = a_catalog(self.folder)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table(self.table, table_of(kinds, dict.fromkeys(kinds, ()), range(0)).schema)
        return IcebergTable(self.table, given)

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        """By pyiceberg, or where there are nested columns by Arrow: pyiceberg makes an empty list
        of a null one of structs.
        """
        table = a_catalog(self.folder).load_table(self.table)
        values = table_of(kinds, choices, rows)
        if not any(pa.types.is_nested(kind) for kind in values.schema.types):
            table.append(values)
            return
        path = self.folder / f"{secrets.token_hex(4)}.parquet"
        pq.write_table(values, path, row_group_size=2)
        table.add_files([f"file://{path}"])
