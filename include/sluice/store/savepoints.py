"""The names of a job's savepoints in one root: which incarnation each of them means.

A pointer is appended as a journal's entry is: create-only under the next number, so of any number
of writers one appends, and the others look again and decide anew.  An own pointer that is found is
recognised by its bytes, which have its token.  A removal deletes the pointers before its own; one
who slept through that could create a deleted number anew, so an append counts only if a LIST shows
none behind it.  Nothing here is deleted or written that another incarnation of the name will ever
use: see ``sluice.core.savepoints`` and docs/adr/0002-savepoints-and-claims.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.savepoints import PointerPhase, SavepointPointer
from sluice.errors import ConfigurationError, ObjectVanished, ProtocolViolation, StoreUnavailable
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import decode_pointer, encode_pointer
from sluice.store.object_store import AlreadyExists, ObjectStore, in_parallel

log = logging.getLogger(__name__)

MAX_RACES = 20  # Lost in a row; few processes ever want one name.
PARALLEL_READS = 16  # Below the client's connection pool.


class SavepointStore:
    def __init__(self, store: ObjectStore, paths: PipelinePaths) -> None:
        self._store = store
        self._paths = paths

    def newest(self, name: str) -> SavepointPointer | None:
        """The pointer that counts: a LIST and a GET; None for a name that was never used."""
        return self._find(name)[1]

    def all(self, keys: Iterable[str]) -> dict[str, SavepointPointer]:
        """By name the pointer that counts, of the names of which *keys* has pointers: a GET each.

        *keys* are a listing of the folder of all savepoints.
        """
        newest: dict[str, int] = {}
        for key in keys:
            found = self._paths.savepoint_pointer_of(key)
            if found is not None:
                name, number = found
                newest[name] = max(number, newest.get(name, 0))

        def read(name: str) -> SavepointPointer | None:
            key = self._paths.savepoint_pointer(name, newest[name])
            raw = self._store.get(key)
            # A newer one may have been appended since the listing, and this one deleted.
            return self.newest(name) if raw is None else decode_pointer(raw, key)

        read_now = zip(newest, in_parallel(read, newest, PARALLEL_READS), strict=True)
        return {name: pointer for name, pointer in read_now if pointer is not None}

    def reserve(
        self,
        savepoint: SavepointId,
        checkpoint_id: CheckpointId,
        *,
        life: str = "",
        copy_of: str = "",
    ) -> SavepointPointer:
        """Reserve the name for the incarnation, before its first file is written, and return the
        pointer in force.  Idempotent.  Of copies of one incarnation the first goes on, whoever
        makes it: theirs is returned.

        Raises:
            ConfigurationError: another incarnation has the name, or this one was removed.
        """
        wanted = SavepointPointer(
            token=savepoint.token,
            phase=PointerPhase.WRITING,
            checkpoint_id=checkpoint_id,
            life=life,
            copy_of=copy_of,
        )

        def decide(newest: SavepointPointer | None) -> SavepointPointer | None:
            if newest is None or (newest.is_gone and newest.token != savepoint.token):
                return wanted
            is_own = newest.token == savepoint.token or (copy_of and newest.copy_of == copy_of)
            if is_own and not newest.is_gone:
                return None
            raise self.taken(savepoint.name, newest)

        return self._append(savepoint.name, decide) or wanted

    def publish(self, savepoint: SavepointId, digest: str) -> None:
        """Make the incarnation a savepoint: its files and its ``_metadata``, whose checksum is
        *digest*, are there.  Idempotent.

        Raises:
            ConfigurationError: it was removed, or its name means another one.
        """

        def decide(newest: SavepointPointer | None) -> SavepointPointer | None:
            if newest is None or newest.token != savepoint.token or newest.is_gone:
                raise self.taken(savepoint.name, newest)
            if not newest.is_complete:
                return replace(newest, phase=PointerPhase.COMPLETE, digest=digest)
            if newest.digest != digest:
                raise ProtocolViolation(
                    f"savepoint {savepoint.name!r} in {self._store.root} is complete with other "
                    "content; a token is used once"
                )
            return None

        self._append(savepoint.name, decide)

    def remove(self, savepoint: SavepointId, only: SavepointPointer | None = None) -> bool:
        """Free the name of the incarnation, if it means that one, before its files are deleted.

        With *only*, not unless the pointer that counts is still that one.  Idempotent.  Returns
        whether the name does not mean the incarnation any more, so that its files may go.
        """

        def decide(newest: SavepointPointer | None) -> SavepointPointer | None:
            if newest is None or newest.token != savepoint.token or newest.is_gone:
                return None
            if only is not None and newest != only:
                return None
            return replace(newest, phase=PointerPhase.GONE)

        newest = self._append(savepoint.name, decide)
        if newest is not None and newest.token == savepoint.token and not newest.is_gone:
            return False
        *older, _ = [*self._numbers(savepoint.name)] or [""]
        self._store.delete(older)  # None of them is ever read again; their numbers stay used.
        return True

    def taken(self, name: str, newest: SavepointPointer | None) -> ConfigurationError:
        """The error that a savepoint cannot have the *name*, which means *newest*."""
        if newest is not None and newest.is_complete:
            return ConfigurationError(
                f"savepoint {name!r} exists in {self._store.root} and is never overwritten; "
                "choose another name"
            )
        if newest is not None and not newest.is_gone:
            return ConfigurationError(
                f"savepoint {name!r} is being written in {self._store.root}; choose another name, "
                "or dispose of it if its writer is dead"
            )
        return ConfigurationError(
            f"savepoint {name!r} in {self._store.root} was disposed of while it was written; "
            "take it again"
        )

    def _append(
        self, name: str, decide: Callable[[SavepointPointer | None], SavepointPointer | None]
    ) -> SavepointPointer | None:
        """Append what *decide* makes of the newest, and return the pointer in force."""
        for _ in range(MAX_RACES):
            number, newest = self._find(name)
            pointer = decide(newest)
            if pointer is None:
                return newest
            key, raw = self._paths.savepoint_pointer(name, number + 1), encode_pointer(pointer)
            if self._create(key, raw) and not any(self._numbers(name, start_after=key)):
                log.info("savepoint %s name=%s", pointer.phase.value.lower(), name)
                return pointer
        raise StoreUnavailable(
            f"savepoint {name!r} in {self._store.root} was won by others {MAX_RACES} times in a row"
        )

    def _create(self, key: str, raw: bytes) -> bool:
        try:
            result = self._store.create(key, raw)
        except ObjectVanished:  # Another's pointer, which a removal has deleted meanwhile.
            return False
        return not isinstance(result, AlreadyExists) or result.body == raw

    def _find(self, name: str) -> tuple[int, SavepointPointer | None]:
        """The number and the pointer that counts; 0 and None before the first."""
        while True:
            keys = [*self._numbers(name)]
            if not keys:
                self._refuse_an_older_format(name)
                return 0, None
            found = self._paths.savepoint_pointer_of(keys[-1])
            raw = self._store.get(keys[-1])
            if found is not None and raw is not None:  # Else a removal deleted it meanwhile.
                return found[1], decode_pointer(raw, keys[-1])

    def _refuse_an_older_format(self, name: str) -> None:
        key = f"{self._paths.savepoint(name)}_metadata"
        if self._store.get(key) is not None:
            raise ProtocolViolation(
                f"{self._store.root}/{key} is of a format version before 7, without a pointer; "
                "restore it with the version of sluice that wrote it, and take it anew"
            )

    def _numbers(self, name: str, *, start_after: str = "") -> Iterable[str]:
        listed = self._store.list(self._paths.savepoint_pointers(name), start_after=start_after)
        return (
            found.key for found in listed if self._paths.savepoint_pointer_of(found.key) is not None
        )
