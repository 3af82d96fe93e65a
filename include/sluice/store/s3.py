"""A store in an S3 bucket, on AWS or on any server that honours ``If-None-Match: *``.

``create`` is sent once: a client that repeats a conditional write by itself may get a 412 for its
own success.  So a lost answer becomes ``StoreUnavailable``, the caller repeats the call, and finds
its own bytes.  Every other verb is safe to repeat, and botocore's standard mode repeats it.

Importing this module is cheap: boto3 is imported when a client is made.  A store is not picklable:
another process opens its own from the same ``StoreLocation``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.core.failures import STORES
from sluice.errors import (
    ObjectVanished,
    SluiceError,
    StoreFull,
    StoreRefuses,
    StoreUnavailable,
)
from sluice.protocol.keys import check_key, check_prefix
from sluice.store.object_store import (
    AlreadyExists,
    Created,
    CreateResult,
    Listed,
    StoreClock,
    check_range,
    machine_clock_ms,
)

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from botocore.loaders import Loader
    from botocore.model import OperationModel
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CopySourceTypeDef, ErrorTypeDef, ObjectTypeDef

DELETE_BATCH = 1_000  # DeleteObjects takes no more.

MAX_COPY_BYTES = 5 * 1024**3  # S3 copies no larger object in one request.
PIECE_BYTES = 4 * 1024**2  # Of an object that is checked as it is read.

CONNECT_TIMEOUT_S = 5  # A healthy endpoint accepts within milliseconds, across an ocean in 0.3 s.
READ_TIMEOUT_S = 60  # botocore's default: S3 may take this long to begin its answer to a large put.
CREATE_READ_TIMEOUT_S = 30  # Created objects are small; the caller repeats, so give up sooner.
MAX_ATTEMPTS = 3  # botocore's default: with its backoff an absent server is reported within 4 s.
MAX_POOL_CONNECTIONS = 64  # More than the threads any sluice process uses; botocore's 10 are fewer.

# One process rarely talks to two servers; a test run does.  Old ones are closed when collected.
CACHED_CLIENTS = 8

# 4xx answers that say "not now" rather than "never".
TRANSIENT_STATUSES = frozenset({408, 409, 429})
TRANSIENT_CODES = frozenset({"RequestTimeout", "BadDigest", "SlowDown", "InternalError"})


class S3Store:
    """An ``ObjectStore`` whose objects are those of *bucket* below ``prefix/``.

    Where they are *foreign*, *prefix* is the whole beginning of their keys, which are any text, and
    are read as they are; what is written has keys of our own.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        endpoint_url: str | None = None,
        region: str | None = None,
        *,
        foreign: bool = False,
    ) -> None:
        self._bucket = bucket
        self._foreign = foreign
        self._prefix = f"{prefix}/" if prefix and not foreign else prefix
        self._clients = clients(endpoint_url, region, os.getpid())

    @property
    def root(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".removesuffix("/")

    @property
    def server(self) -> str:
        """The server's address."""
        return self._clients.repeating.meta.endpoint_url

    def now_ms(self) -> int:
        """The server's clock, by its latest answers; a server that says none has this machine's."""
        if self._clients.clock.now_ms() is None:
            next(self.list(""), None)
        told_ms = self._clients.clock.now_ms()
        return machine_clock_ms() if told_ms is None else told_ms

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
        if not self._foreign:
            check_prefix(prefix)
        paginator = self._clients.repeating.get_paginator("list_objects_v2")
        after = self._prefix + start_after if start_after else ""
        with self._translated():
            for page in paginator.paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, StartAfter=after
            ):
                for found in page.get("Contents", []):
                    key = found["Key"].removeprefix(self._prefix)
                    # Consoles mark a "folder" with such a key; only others write bytes to one.
                    is_mark = key.endswith("/") and not (self._foreign and found["Size"])
                    if key and not is_mark:
                        yield Listed(
                            key=key,
                            size_bytes=found["Size"],
                            modified_ms=int(found["LastModified"].timestamp() * 1000),
                            version=_version(found),
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
            self._check_deletes(answer.get("Errors", []))

    def shares_server_with(self, other: S3Store) -> bool:
        """Whether one server, asked with the same credentials, has both stores."""
        return self._clients is other._clients

    def copy_from(
        self, source: S3Store, source_key: str, key: str, check: Callable[[Iterable[bytes]], None]
    ) -> bool:
        """Have the server copy an object of *source* after *check* of its bytes; False without one.

        The server copies the bytes that were checked, or refuses: ``CopySourceIfMatch``.
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
                    raise StoreRefuses(f"{self._place()} does not copy when it is asked to")
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

        full_key = self._prefix + key if self._foreign else self._full_key(key)
        with self._translated():
            try:
                if byte_range is None:
                    answer = self._clients.repeating.get_object(Bucket=self._bucket, Key=full_key)
                else:
                    answer = self._clients.repeating.get_object(
                        Bucket=self._bucket, Key=full_key, Range=byte_range
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
            raise StoreRefuses(
                f"there are no credentials for {self._place()}; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
            ) from error
        except ParamValidationError as error:
            raise StoreRefuses(f"{self._place()} cannot be asked: {error}") from error
        except EndpointConnectionError as error:
            # A server that restarts looks the same as a misspelt host, and waiting helps the first.
            raise StoreUnavailable(
                f"no S3 server answers for {self._place()}; start it or correct --endpoint-url"
            ) from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"{self._place()} did not answer: {error}") from error

    def _refusal(self, error: ClientError) -> SluiceError:
        """The refusal of a request: repeat it, or have a person mend something."""
        code, status, place = _code(error), _status(error), self._place()
        endpoint_url = self._clients.repeating.meta.endpoint_url
        if code == "NoSuchBucket":
            return StoreRefuses(
                f"bucket {self._bucket!r} does not exist at {endpoint_url}; create it or "
                "correct --root"
            )
        if code == "NotImplemented":
            return StoreRefuses(
                f"{place} does not implement {error.operation_name} as sluice sends it; use AWS "
                f"S3, or another store listed in {STORES}"
            )
        sentence = f"{place} answered {status} {code} to {error.operation_name}"
        if status == HTTPStatus.INSUFFICIENT_STORAGE:
            return StoreFull(f"{sentence}; free space there")
        is_passing = status >= 500 or status in TRANSIENT_STATUSES or code in TRANSIENT_CODES
        # NoSuchKey: AWS answers a conditional put so when a delete overtook it.
        if is_passing or code == "NoSuchKey":
            return StoreUnavailable(f"{sentence}; repeat the call")
        is_elsewhere = code in {"AuthorizationHeaderMalformed", "PermanentRedirect"}
        if status in {301, 307} or is_elsewhere:
            return StoreRefuses(f"{sentence}: the bucket is in another region; set AWS_REGION")
        if status in {401, 403}:
            return StoreRefuses(
                f"{sentence}; give these credentials s3:GetObject, s3:PutObject, s3:DeleteObject "
                "and s3:ListBucket there, or use others"
            )
        message = error.response["Error"].get("Message", "")
        return StoreRefuses(f"{sentence}: {message}; correct --root or --endpoint-url")

    def _check_deletes(self, errors: Iterable[ErrorTypeDef]) -> None:
        """Raises for the first object that was not deleted; one that was absent is no error."""
        for error in errors:
            code, message = error.get("Code", ""), error.get("Message", "")
            if code == "NoSuchKey":
                continue
            sentence = f"{self._place()} did not delete {error.get('Key')!r}: {code} {message}"
            if code in {"AccessDenied", "MethodNotAllowed"}:
                raise StoreRefuses(f"{sentence}; allow s3:DeleteObject there")
            raise StoreUnavailable(sentence)


def _version(found: ObjectTypeDef) -> str:
    """The ETag; of a server that lists none, size and time."""
    etag = found.get("ETag", "").strip('"')
    return etag or f"{found['Size']:x}-{found['LastModified'].timestamp():.3f}"


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _code(error: ClientError) -> str:
    return error.response["Error"].get("Code", "")


class Clients(NamedTuple):
    once: S3Client  # For create.
    repeating: S3Client  # For everything else.
    clock: StoreClock  # The server's.


@lru_cache(maxsize=CACHED_CLIENTS)
def clients(endpoint_url: str | None, region: str | None, process_id: int) -> Clients:
    """The clients of a process, server and region, whatever the number of stores.

    They are safe for threads and slow to build, but a forked child must not share sockets.
    """
    from botocore.config import Config
    from botocore.exceptions import ProfileNotFound
    from botocore.handlers import add_expect_header

    if process_id != os.getpid():
        raise RuntimeError("a client belongs to the process that asked for it")
    try:
        session = _session()
        configured_region = session.region_name
    except ProfileNotFound as error:
        raise StoreRefuses(f"{error}; correct AWS_PROFILE, or leave it out") from error
    if region is None and endpoint_url is not None:
        region = configured_region or "us-east-1"  # Such a server has none; signing needs one.
    common = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        max_pool_connections=MAX_POOL_CONNECTIONS,
        s3={"addressing_style": "auto" if endpoint_url is None else "path"},
    )
    once = Config(
        read_timeout=CREATE_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    repeating = Config(
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": MAX_ATTEMPTS},
    )

    clock = StoreClock()

    def read_headers(parsed: Mapping[str, Any], model: OperationModel, **_: object) -> None:
        answer = parsed.get("ResponseMetadata", {})
        headers = answer.get("HTTPHeaders", {})
        if answer.get("HTTPStatusCode", 0) < 300 and not _is_of_s3(model.name, headers):
            raise StoreUnavailable(
                f"something between here and {endpoint_url or 'S3'} answered {model.name} in its "
                "place, with a page of its own; repeat the call, or have it let S3 through"
            )
        with suppress(TypeError, ValueError):
            clock.was_told(int(parsedate_to_datetime(headers.get("date")).timestamp() * 1_000))

    def client(config: Config) -> S3Client:
        try:
            made = session.client(
                "s3", endpoint_url=endpoint_url, region_name=region, config=common.merge(config)
            )
        except ValueError as error:
            raise StoreRefuses(
                f"{error}; write the endpoint as http://host:port or https://host"
            ) from error
        # A body that waits for "100 Continue" costs every write a second round trip; without it
        # only a bucket in another region, which is refused by name, is sent a body in vain.
        made.meta.events.unregister("before-call.s3", add_expect_header)
        made.meta.events.register("after-call.s3", read_headers)
        return made

    return Clients(once=client(once), repeating=client(repeating), clock=clock)


def _is_of_s3(operation: str, headers: Mapping[str, str]) -> bool:
    """Whether S3 can have said so: a page parses as an empty listing, or a write."""
    if "etag" in headers:
        return True
    is_page = headers.get("content-type", "").startswith("text/html")
    return not is_page and operation not in {"GetObject", "PutObject"}


def preload_descriptions() -> None:
    """Parse botocore's descriptions of S3 before a fork, not in each child.

    Its first client then takes a process 10 to 20 ms, not 70.  No socket and no thread is left.
    """
    from botocore.exceptions import BotoCoreError

    with suppress(BotoCoreError):  # A wrong profile, say: the first request reports it.
        session = _session(aws_access_key_id="none", aws_secret_access_key="none")  # noqa: S106
        client = session.client("s3", region_name="us-east-1")
        client.get_paginator("list_objects_v2")


def _session(**credentials: str) -> Session:
    import boto3
    import botocore.session

    core = botocore.session.get_session()
    core.register_component("data_loader", _descriptions())
    return boto3.session.Session(botocore_session=core, **credentials)


@cache
def _descriptions() -> Loader:
    """botocore's parsed descriptions, shared by all sessions: each would parse for itself."""
    import botocore.session

    loader: Loader = botocore.session.get_session().get_component("data_loader")
    return loader
