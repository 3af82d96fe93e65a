"""``_latest``: the list of files for other tools' readers, one object at the table's root.

    # {"version": 1, "checkpoint_id": 7, "upsert_key": null, "files": 2, "rows": 10, ...}
    s3://bucket/table/data/00000000000000000006-00000-1-a.parquet
    s3://bucket/table/data/00000000000000000007-00000-1-a.parquet

A header of JSON, then an absolute URI per line, in the order in which files apply: in a table with
an upsert key the last row of a key wins, and a file of deletes removes rows.  It is derived from
the manifests, and written anew when it is lost or invalid.

It is the one object that is replaced, so a late writer may replace it with an older version.  Each
writer checks until its version is the newest; a process that pauses between check and write leaves
an older version, complete and committed, until the next commit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from sluice.connectors.files_table.table_manifest import TableLog
from sluice.connectors.staging.staged_files import RowFile
from sluice.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
LATEST = "_latest"
MAX_LOOKS = 10  # A retry means that another writer was faster, and that one checks again, too.


class LatestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """``compacted`` is the version whose merged files come first; ``digest`` is that of the lines.

    With an ``upsert_key`` the files still have rows that were replaced, unless all are merged.
    """

    version: int
    root: str
    checkpoint_id: int | None
    compacted: int | None
    upsert_key: tuple[str, ...] | None
    files: int
    rows: int
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Latest:
    """The parsed object.  ``lines`` are URIs."""

    header: LatestHeader
    lines: tuple[str, ...]

    def encode(self) -> bytes:
        header = msgspec.json.encode(self.header).decode()
        return "".join(f"{line}\n" for line in (f"# {header}", *self.lines)).encode()


def refresh(store: ObjectStore) -> None:
    """Write the list of the newest version, unless it exists.  Raises StoreUnavailable: try again.

    It continues the existing list, so the number of requests does not grow with the versions.
    """
    table = TableLog(store)
    for _ in range(MAX_LOOKS):
        raw = store.get(LATEST)
        latest = _continued(table, None if raw is None else decode(raw, store.root))
        body = latest.encode()
        if body == raw:
            return
        store.put(LATEST, body)
        seen = table.newest(latest.header.checkpoint_id or 0)
        if seen == latest.header.checkpoint_id and store.get(LATEST) == body:
            return
    log.warning("others write what readers read, again and again root=%s", store.root)


def decode(raw: bytes, root: str) -> Latest | None:
    """The parsed *raw*; None if it is incomplete, of another format, or of another root."""
    try:
        first, *lines = raw.decode().removesuffix("\n").split("\n")
        header = msgspec.json.decode(first.removeprefix("# "), type=LatestHeader)
    except (UnicodeDecodeError, msgspec.DecodeError, ValueError):
        return None
    is_ours = (
        header.version == FORMAT_VERSION
        and header.root == root
        and header.digest == _digest(lines)
        and header.files == len(lines)
    )
    return Latest(header, tuple(lines)) if is_ours else None


def uri(root: str, file: str) -> str:
    """The absolute name of a file: a path if the root is a folder, else a URI."""
    return f"{root.removeprefix('file://')}/{file}"


def _continued(table: TableLog, before: Latest | None) -> Latest:
    """The list of the newest version; continues *before* if that version does."""
    known = (before.header.checkpoint_id or 0) if before is not None else 0
    if known and table.newest(known) == known and before is not None:
        newest_record = max((one for one in table.compacted() if one <= known), default=None)
        if newest_record == before.header.compacted:
            return before
        known = 0
    chain = table.chain(known=known)
    continues = chain.manifests and chain.base is None and chain.manifests[0].parent == known
    root = table.store.root
    if before is None or not known or not continues:
        chain = chain if not known else table.chain()
        base = None if chain.base is None else chain.base.checkpoint_id
        return _latest(root, chain.version, base, chain.upsert_key, chain.files)
    header = before.header
    added = chain.files
    lines = (*before.lines, *(uri(root, one.file) for one in added))
    return Latest(
        msgspec.structs.replace(
            header,
            checkpoint_id=chain.version,
            upsert_key=chain.upsert_key,
            files=len(lines),
            rows=header.rows + sum(one.rows for one in added),
            size_bytes=header.size_bytes + sum(one.size_bytes for one in added),
            digest=_digest(lines),
        ),
        lines,
    )


def _latest(
    root: str,
    version: int | None,
    compacted: int | None,
    upsert_key: tuple[str, ...] | None,
    files: Iterable[RowFile],
) -> Latest:
    listed = [*files]
    lines = tuple(uri(root, one.file) for one in listed)
    header = LatestHeader(
        version=FORMAT_VERSION,
        root=root,
        checkpoint_id=version,
        compacted=compacted,
        upsert_key=upsert_key,
        files=len(lines),
        rows=sum(one.rows for one in listed),
        size_bytes=sum(one.size_bytes for one in listed),
        digest=_digest(lines),
    )
    return Latest(header, lines)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
