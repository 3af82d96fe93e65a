"""The names of a table's files, and how they are parsed.

data/{checkpoint}-{subtask}-{attempt}...     staged by a subtask
compacted/{version}-{number}-{token}...      rows of many files, merged
_manifests/..., _compacted/...               the log; see table_manifest.py
_schemas/{schema}.arrow                      of files of JSON lines
_columns/{schema}.arrow                      see table_schemas.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from sluice.errors import ProtocolViolation

DATA = "data/"
COMPACTED = "compacted/"
DELETES = "-deletes.parquet"
PARTS = ".parts.json"
MANIFESTS = "_manifests/"
RECORDS = "_compacted/"
COLUMNS = "_columns/"
_LOGGED = re.compile(r"_manifests/([0-9]{20})(?:_([0-9]{10,})_([0-9]{10,}))?\.json")
_RECORD = re.compile(r"_compacted/([0-9]{20})\.json")

_STEM = r"([0-9]{20})-[0-9]{5,}-[A-Za-z0-9-]+"
_ENDS = r"(?:\.parquet|\.json|\.parts\.json|/.+/part\.(?:parquet|json))"
_DATA_FILE = re.compile(DATA + _STEM + _ENDS)
_COMPACTED_FILE = re.compile(COMPACTED + _STEM + _ENDS)
_TOP = re.compile(r"([^/]+/[^/.]+)(?:\..*|/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Name:
    """The key of a manifest, or of a fence, parsed.

    ``shown`` is the version that readers see if this is the last name; only a fence has a
    ``generation``.
    """

    key: str
    checkpoint_id: int
    shown: int | None
    generation: int | None = None

    @property
    def is_fence(self) -> bool:
        return self.generation is not None


class _Named(Protocol):
    @property
    def file(self) -> str: ...


def of_data(key: str) -> int | None:
    """The checkpoint that staged the file; None when the name has another form."""
    name = _DATA_FILE.fullmatch(key)
    return None if name is None else int(name[1])


def of_compacted(key: str) -> int | None:
    """The version whose rows were merged; None when the name has another form."""
    name = _COMPACTED_FILE.fullmatch(key)
    return None if name is None else int(name[1])


def data_prefix(checkpoint_id: int) -> str:
    return f"{DATA}{checkpoint_id:020d}-"


def behind_data_of(checkpoint_id: int) -> str:
    """A key that sorts behind all files that the checkpoint staged."""
    return f"{DATA}{checkpoint_id:020d}~"


def compacted_stem(version: int, number: int, token: str) -> str:
    return f"{COMPACTED}{version:020d}-{number:05d}-{token}"


def unit_of(file: str) -> str:
    """The name of the committable that a file belongs to: the file itself, or a list."""
    is_of_many = file.count("/") > 1 or file.endswith(PARTS)
    return _stem(file) + PARTS if is_of_many else file


def folder_of(unit: str) -> str:
    """The folder of the partitions that a list names."""
    return unit.removesuffix(PARTS) + "/"


def partition_of(file: str) -> str:
    """The partition of a file, such as ``day=2026-01-01``, or empty."""
    return "/".join(file.split("/")[2:-1])


def name_of(key: str) -> Name | None:
    """The parsed *key*; None when it has another form."""
    found = _LOGGED.fullmatch(key)
    if found is None:
        return None
    checkpoint_id, generation, shown = found.groups()
    if generation is None:
        return Name(key, int(checkpoint_id), int(checkpoint_id))
    return Name(key, int(checkpoint_id), int(shown) or None, int(generation))


def manifest_key(checkpoint_id: int) -> str:
    """The key of a manifest, zero-padded, so that listing order is checkpoint order."""
    return f"{MANIFESTS}{checkpoint_id:020d}.json"


def fence_key(through: int, generation: int, shown: int | None) -> str:
    """The key of a fence, which sorts behind the manifest of *through*; 0 is the empty table."""
    return f"{MANIFESTS}{through:020d}_{generation:010d}_{shown or 0:010d}.json"


def record_key(version: int) -> str:
    return f"{RECORDS}{version:020d}.json"


def of_record(key: str) -> int | None:
    """The version that has merged files; None when the name has another form."""
    name = _RECORD.fullmatch(key)
    return None if name is None else int(name[1])


def is_json(file: str) -> bool:
    return file.endswith(".json")


def schema_key(name: str) -> str:
    """The key of a schema, from its hash, or from the file that has the hash in its name."""
    if "/" in name:
        name = _stem(name).removesuffix("-deletes").rpartition("-")[2]
    return f"_schemas/{name}.arrow"


def columns_key(name: str) -> str:
    """The key of recorded columns, from a schema's hash."""
    return f"{COLUMNS}{name}.arrow"


def is_deletes(file: str) -> bool:
    return file.startswith(DATA) and _stem(file).endswith("-deletes")


def deletes_first(staged: _Named) -> tuple[bool, str]:
    """The sort key of a checkpoint's files: deletes apply first."""
    return not is_deletes(staged.file), staged.file


def _stem(file: str) -> str:
    name = _TOP.fullmatch(file)
    if name is None:
        raise ProtocolViolation(f"{file!r} is not the name of a table's file")
    return name[1]
