"""Damaged files of a checkpoint: missing, of another size, or with other bytes than written."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core.handles import SegmentHandle


def damaged_files(
    sizes: Mapping[SegmentHandle, int | None], checksums: Mapping[SegmentHandle, str] | None
) -> list[str]:
    """A sentence for each that is missing, of another size, or of other bytes, if they were read;
    one that is too short is named once.
    """
    resized = {h: size for h, size in sizes.items() if size != h.size_bytes}
    return [
        *(_wrong_size(handle, size) for handle, size in resized.items()),
        *(
            f"{handle.key or 'inline state'} is damaged: checksum {handle.checksum} was recorded, "
            f"its {handle.size_bytes} bytes have {found}"
            for handle, found in (checksums or {}).items()
            if found != handle.checksum and handle not in resized
        ),
    ]


def _wrong_size(handle: SegmentHandle, size: int | None) -> str:
    state_of_it = "is missing" if size is None else f"has {size} bytes"
    return f"{handle.key} {state_of_it}, expected {handle.size_bytes} bytes"
