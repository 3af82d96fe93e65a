"""Whether a Spark Connect server answers, asked at its port; ``tests/e2e`` asks a real one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sluice.devstack.processes import LOOPBACK, free_ports
from sluice.spark import session
from sluice.spark.session import ask_spark


@pytest.fixture(name="mute")
def _mute() -> Iterator[int]:
    """A port that the kernel answers, and no program."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_without_a_server_and_a_server_that_hangs_are_errors(
    mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.2)
    (closed,) = free_ports(1)

    with pytest.raises(ConnectionRefusedError):
        ask_spark(f"sc://{LOOPBACK}:{closed}")
    with pytest.raises(TimeoutError):
        ask_spark(f"sc://{LOOPBACK}:{mute}")


def test_of_a_server_behind_tls_the_port_is_enough(mute: int) -> None:
    ask_spark(f"sc://{LOOPBACK}:{mute}/;use_ssl=true")
    ask_spark(f"sc://{LOOPBACK}:{mute}/;token=secret")
