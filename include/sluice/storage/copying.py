"""An object copied from one store to another: by the S3 server itself where both are there.

Either way its bytes are read and checked before a copy exists; they only need not be sent back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from sluice.errors import ConfigurationError
from sluice.storage.object_store import ObjectStore
from sluice.storage.patience import PatientStore
from sluice.storage.s3 import S3Store

log = logging.getLogger(__name__)

Check: TypeAlias = Callable[[Iterable[bytes]], None]


def copy_object(
    source: ObjectStore, source_key: str, target: ObjectStore, key: str, check: Check
) -> bool:
    """Write the object of *source* to *key* of *target*, once *check* has not raised over its
    bytes; False when there is none.  Idempotent.
    """
    here, there = _in_s3(source), _in_s3(target)
    if here is not None and there is not None and there.shares_server_with(here):

        def copy() -> bool:
            return there.copy_from(here, source_key, key, check)

        try:
            return target.patiently(copy) if isinstance(target, PatientStore) else copy()
        except ConfigurationError as error:
            # Rights to copy may be others than those to read and to write, which the job has.
            log.info("object is copied by hand key=%s: %s", source_key, error)
    body = source.get(source_key)
    if body is None:
        return False
    check([body])
    target.put(key, body)
    return True


def _in_s3(store: ObjectStore) -> S3Store | None:
    behind = store.behind if isinstance(store, PatientStore) else store
    return behind if isinstance(behind, S3Store) else None
