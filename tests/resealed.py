"""A record that somebody else wrote: whole, and not what this version would have written."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.protocol.records import checksum


def resealed(envelope: bytes | dict[str, Any]) -> bytes:
    """An envelope of a record, with the checksum of the body that it has now."""
    found = msgspec.json.decode(envelope) if isinstance(envelope, bytes) else envelope
    body = msgspec.json.encode(found["body"])
    sealed = found | {"checksum": checksum(body), "body": msgspec.Raw(body)}
    return msgspec.json.encode(sealed)
