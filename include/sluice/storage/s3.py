"""A store in an S3 bucket, on AWS or on any server that honours ``If-None-Match: *``.

``create`` is sent once: a client that repeats a conditional write by itself may be told 412 for its
own success.  So a lost answer becomes ``StoreUnavailable``, the caller repeats the call, and finds
its own bytes.  Every other verb is safe to repeat, and botocore's standard mode repeats it.

Importing this module is cheap.  A store is not picklable: another process opens its own from the
same ``StoreLocation``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError, ObjectVanished, SluiceError, StoreUnavailable
from sluice.protocol.names import check_key, check_prefix
from sluice.storage.object_store import AlreadyExists, Created, CreateResult, Listed, check_range
from sluice.storage.s3_clients import clients
from sluice.storage.s3_refusals import Refusal, check_deletes

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

DELETE_BATCH = 1_000  # DeleteObjects takes no more.

# S3 copies no larger object in one request.
MAX_COPY_BYTES = 5 * 1024**3
PIECE_BYTES = 4 * 1024**2  # Of an object that is checked as it passes.


class S3Store:
    """An ``ObjectStore`` whose objects are those of *bucket* below ``prefix/``."""

    def __init__(
        self, bucket: str, prefix: str, endpoint_url: str | None = None, region: str | None = None
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._clients = clients(endpoint_url, region, os.getpid())

    @property
    def root(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".removesuffix("/")

    def get(self, key: str) -> bytes | None:
        return self._get(key, None)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        check_range(start, end)
        # HTTP cannot ask for no bytes at all, and a HEAD does not tell a missing bucket from a
        # missing object: read one byte and drop it.
        body = self._get(key, f"bytes={start}-{max(start, end - 1)}")
        return None if body is None else body[: end - start]

    def put(self, key: str, body: bytes) -> None:
        with self._translated():
            self._clients.repeating.put_object(
                Bucket=self._bucket, Key=self._full_key(key), Body=body
            )

    def create(self, key: str, body: bytes) -> CreateResult:
        from botocore.exceptions import ClientError

        with self._translated():
            try:
                self._clients.once.put_object(
                    Bucket=self._bucket, Key=self._full_key(key), Body=body, IfNoneMatch="*"
                )
            except ClientError as error:
                if _status(error) != 412:
                    raise
            else:
                return Created()
        existing = self.get(key)
        if existing is None:
            raise ObjectVanished(f"{self.root}/{key} existed and has vanished; repeat the call")
        return AlreadyExists(existing)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        check_prefix(prefix)
        paginator = self._clients.repeating.get_paginator("list_objects_v2")
        after = self._prefix + start_after if start_after else ""
        with self._translated():
            for page in paginator.paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, StartAfter=after
            ):
                for found in page.get("Contents", []):
                    key = found["Key"].removeprefix(self._prefix)
                    if key and not key.endswith("/"):  # Consoles mark a "folder" with such a key.
                        yield Listed(
                            key=key,
                            size_bytes=found["Size"],
                            modified_ms=int(found["LastModified"].timestamp() * 1000),
                            version=found["ETag"].strip('"'),
                        )

    def delete(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while batch := list(islice(remaining, DELETE_BATCH)):
            with self._translated():
                answer = self._clients.repeating.delete_objects(
                    Bucket=self._bucket,
                    Delete={
                        "Objects": [{"Key": self._full_key(key)} for key in batch],
                        "Quiet": True,
                    },
                )
            check_deletes(self._place(), answer.get("Errors", []))

    def shares_server_with(self, other: S3Store) -> bool:
        """Whether one server, asked with the same credentials, has both stores."""
        return self._clients is other._clients

    def copy_from(
        self, source: S3Store, source_key: str, key: str, check: Callable[[Iterable[bytes]], None]
    ) -> bool:
        """Have the server copy an object of *source*, once *check* has not raised over its bytes;
        False when there is none.

        The server copies what was checked, or refuses: ``CopySourceIfMatch``.
        """
        from boto3.s3.transfer import TransferConfig
        from botocore.exceptions import ClientError

        client, bucket, full_key = self._clients.repeating, self._bucket, self._full_key(key)
        there: CopySourceTypeDef = {"Bucket": source._bucket, "Key": source._full_key(source_key)}
        with self._translated():
            try:
                found = client.get_object(Bucket=there["Bucket"], Key=there["Key"])
            except ClientError as error:
                if _code(error) != "NoSuchKey":
                    raise
                return False
            with closing(found["Body"]) as body:
                check(body.iter_chunks(PIECE_BYTES))
            if found["ContentLength"] <= MAX_COPY_BYTES:
                answer = client.copy_object(
                    Bucket=bucket, Key=full_key, CopySource=there, CopySourceIfMatch=found["ETag"]
                )
                if "ETag" not in answer.get("CopyObjectResult", {}):
                    raise ConfigurationError(f"{self._place()} does not copy when it is asked to")
            else:  # In parts, several at a time.
                checked = {"CopySourceIfMatch": found["ETag"]}
                parts = TransferConfig(multipart_threshold=MAX_COPY_BYTES)
                client.copy(there, bucket, full_key, ExtraArgs=checked, Config=parts)
        return True

    def _full_key(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _get(self, key: str, byte_range: str | None) -> bytes | None:
        from botocore.exceptions import ClientError

        with self._translated():
            try:
                if byte_range is None:
                    answer = self._clients.repeating.get_object(
                        Bucket=self._bucket, Key=self._full_key(key)
                    )
                else:
                    answer = self._clients.repeating.get_object(
                        Bucket=self._bucket, Key=self._full_key(key), Range=byte_range
                    )
            except ClientError as error:
                match _code(error):
                    case "NoSuchKey":
                        return None
                    case "InvalidRange":
                        return b""  # The object ends before the range starts.
                    case _:
                        raise
            with closing(answer["Body"]) as body:
                return body.read()

    def _place(self) -> str:
        return f"bucket {self._bucket!r} at {self._clients.repeating.meta.endpoint_url}"

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            EndpointConnectionError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
        )

        try:
            yield
        except ClientError as error:
            raise self._refusal(error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            clients.cache_clear()  # A store opened later looks for credentials again.
            raise ConfigurationError(
                f"there are no credentials for {self._place()}; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
            ) from error
        except ParamValidationError as error:
            raise ConfigurationError(f"{self._place()} cannot be asked: {error}") from error
        except EndpointConnectionError as error:
            # A server that restarts looks the same as a misspelt host, and waiting helps the first.
            raise StoreUnavailable(
                f"no S3 server answers for {self._place()}; start it or correct --endpoint-url"
            ) from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"{self._place()} did not answer: {error}") from error

    def _refusal(self, error: ClientError) -> SluiceError:
        return Refusal(
            bucket=self._bucket,
            endpoint_url=self._clients.repeating.meta.endpoint_url,
            operation=error.operation_name,
            status=_status(error),
            code=_code(error),
            message=error.response["Error"].get("Message", ""),
        ).error


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _code(error: ClientError) -> str:
    return error.response["Error"].get("Code", "")
