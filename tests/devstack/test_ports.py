"""Ports are free when we say so, and a taken one is named with the way out."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.devstack import processes
from sluice.errors import ConfigurationError
from tests.patching import replace_in


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((processes.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_free_ports_are_distinct_and_free() -> None:
    found = processes.free_ports(20)

    assert len(set(found)) == 20
    assert all(processes.is_free(port) for port in found)


def test_a_taken_port_is_refused_with_the_variable_to_set(taken_port: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        processes.require_free(taken_port, variable="SLUICE_AIRFLOW_PORT")

    assert str(caught.value) == (
        f"port {taken_port} on 127.0.0.1 is taken by another process;"
        " stop it or set SLUICE_AIRFLOW_PORT to a free port"
    )


def test_the_first_free_preference_wins(taken_port: int) -> None:
    (free,) = processes.free_ports(1)

    assert processes.first_free(taken_port, free) == free
    assert processes.first_free(taken_port) != taken_port


def test_only_a_listener_accepts_connections(taken_port: int) -> None:
    (free,) = processes.free_ports(1)

    assert processes.accepts_connections(taken_port)
    assert not processes.accepts_connections(free)


def test_free_ports_are_never_given_to_outgoing_connections() -> None:
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert max(processes.free_ports(20)) < lowest_ephemeral


def test_a_connection_to_oneself_is_not_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as lonely:
        lonely.bind((processes.LOOPBACK, 0))
        port = lonely.getsockname()[1]
        lonely.connect((processes.LOOPBACK, port))  # As happens by chance to a client that polls.
        replace_in(
            monkeypatch, processes.__name__, "socket", create_connection=lambda *_, **__: lonely
        )

        assert not processes.accepts_connections(port)
