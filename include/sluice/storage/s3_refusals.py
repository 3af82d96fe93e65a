"""What an S3 server's refusal means for who asked: repeat it, or have a person mend something."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.pages import STORES
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ErrorTypeDef

# 4xx answers that say "not now" rather than "never".
PASSING_STATUSES = frozenset({408, 409, 429})
PASSING_CODES = frozenset({"RequestTimeout", "BadDigest", "SlowDown", "InternalError"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer with an error; ``place`` names the bucket and the server."""

    bucket: str
    endpoint_url: str
    operation: str
    status: int
    code: str
    message: str

    @property
    def place(self) -> str:
        return f"bucket {self.bucket!r} at {self.endpoint_url}"

    @property
    def error(self) -> SluiceError:
        match self.code:
            case "NoSuchBucket":
                return ConfigurationError(
                    f"bucket {self.bucket!r} does not exist at {self.endpoint_url}; create it or "
                    "correct --root"
                )
            case "NotImplemented":
                return ConfigurationError(
                    f"{self.place} does not implement {self.operation} as sluice sends it; use AWS "
                    f"S3, or another store listed in {STORES}"
                )
            case _:
                return self._by_status()

    def _by_status(self) -> SluiceError:
        sentence = f"{self.place} answered {self.status} {self.code} to {self.operation}"
        passing = (
            self.status >= 500 or self.status in PASSING_STATUSES or self.code in PASSING_CODES
        )
        # NoSuchKey: AWS answers a conditional put so when a delete overtook it.
        if passing or self.code == "NoSuchKey":
            return StoreUnavailable(f"{sentence}; repeat the call")
        is_elsewhere = self.code in {"AuthorizationHeaderMalformed", "PermanentRedirect"}
        if self.status in {301, 307} or is_elsewhere:
            return ConfigurationError(
                f"{sentence}: the bucket is in another region; set AWS_REGION"
            )
        if self.status in {401, 403}:
            return ConfigurationError(
                f"{sentence}; give these credentials s3:GetObject, s3:PutObject, s3:DeleteObject "
                "and s3:ListBucket there, or use others"
            )
        return ConfigurationError(f"{sentence}: {self.message}; correct --root or --endpoint-url")


def check_deletes(place: str, errors: Iterable[ErrorTypeDef]) -> None:
    """Raises for the first object that was not deleted; one that was not there is none."""
    for error in errors:
        code = error.get("Code", "")
        if code == "NoSuchKey":
            continue
        sentence = f"{place} did not delete {error.get('Key')!r}: {code} {error.get('Message', '')}"
        if code in {"AccessDenied", "MethodNotAllowed"}:
            raise ConfigurationError(f"{sentence}; allow s3:DeleteObject there")
        raise StoreUnavailable(sentence)
