"""The names that others have for a place: OpenLineage's namespace and name of a dataset.

The rules are those of https://openlineage.io/docs/spec/naming, by which a table that Sluice writes
and another tool reads is one dataset in a catalog of lineage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table, topic or folder, as OpenLineage names it."""

    namespace: str
    name: str


@runtime_checkable
class NamedPlaceSpec(Protocol):
    """A descriptor of a source or sink whose place has names that others know."""

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """The datasets that it reads or writes, without secrets; none for one below the job's root.

        The place is not asked.
        """
        ...


def dataset_at(location: str) -> Dataset:
    """A folder or file, as a path or a URI; ``s3a`` and ``s3`` are one store."""
    scheme, is_uri, rest = location.partition("://")
    if not is_uri:
        return Dataset("file", os.path.abspath(location))  # noqa: PTH100 - links are not followed
    if scheme == "file":
        return Dataset("file", "/" + rest.strip("/"))
    bucket, _, key = rest.partition("/")
    return Dataset(f"{scheme.replace('s3a', 's3')}://{bucket}", key.strip("/") or "/")
