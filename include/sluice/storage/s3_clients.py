"""Clients of S3: one pair a process, server and region, whatever the number of stores.

boto3 is known to this module and to ``storage.s3`` alone; it is imported when a client is made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.loaders import Loader
    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT_S = 5  # A healthy endpoint accepts within milliseconds, across an ocean in 0.3 s.
READ_TIMEOUT_S = 60  # botocore's default: S3 may take this long to begin its answer to a large put.
CREATE_READ_TIMEOUT_S = 30  # Created objects are small; the caller repeats, so give up sooner.
MAX_ATTEMPTS = 3  # botocore's default: with its backoff an absent server is reported within 4 s.
MAX_POOL_CONNECTIONS = 64  # More than the threads any sluice process uses; botocore's 10 are fewer.

# One process rarely talks to two servers; a test run does.  Old ones are closed when collected.
CACHED_CLIENTS = 8


class Clients(NamedTuple):
    once: S3Client  # For create.
    repeating: S3Client  # For everything else.


@lru_cache(maxsize=CACHED_CLIENTS)
def clients(endpoint_url: str | None, region: str | None, process_id: int) -> Clients:
    """Clients are safe for threads and slow to build, but a forked child must not share sockets."""
    from botocore.config import Config
    from botocore.exceptions import ProfileNotFound
    from botocore.handlers import add_expect_header

    if process_id != os.getpid():
        raise RuntimeError("a client belongs to the process that asked for it")
    try:
        session = _session()
        found = session.region_name
    except ProfileNotFound as error:
        raise ConfigurationError(f"{error}; correct AWS_PROFILE, or leave it out") from error
    if region is None and endpoint_url is not None:
        region = found or "us-east-1"  # Such a server has none; signing needs one.
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

    def client(config: Config) -> S3Client:
        try:
            made = session.client(
                "s3", endpoint_url=endpoint_url, region_name=region, config=common.merge(config)
            )
        except ValueError as error:
            raise ConfigurationError(
                f"{error}; write the endpoint as http://host:port or https://host"
            ) from error
        # A body that waits for "100 Continue" costs every write a second round trip; without it
        # only a bucket in another region, which is refused by name, is sent a body in vain.
        made.meta.events.unregister("before-call.s3", add_expect_header)
        return made

    return Clients(once=client(once), repeating=client(repeating))


def preload_descriptions() -> None:
    """Parse botocore's descriptions of S3 before a fork, not in each child: for its first client a
    process waits 10 to 20 ms then, not 70.  No socket and no thread is left.
    """
    from botocore.exceptions import BotoCoreError

    with suppress(BotoCoreError):  # The profile of the environment, say: the first request tells.
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
    """What botocore has parsed, for all sessions of this process: each would parse for itself."""
    import botocore.session

    loader: Loader = botocore.session.get_session().get_component("data_loader")
    return loader
