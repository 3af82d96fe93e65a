"""Ports on 127.0.0.1: requested ones, or free ones below the kernel's ephemeral range.

The kernel gives outgoing connections any port of its ephemeral range (32768 and up).  A server's
port from there may be gone when the server restarts; worse, a client that polls such a port can be
given that very port, and connects to itself.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from secrets import randbelow

from sluice.errors import ConfigurationError

LOOPBACK = "127.0.0.1"

_LOWEST_PORT = 20_000  # Above what well-known services use.
_HIGHEST_PORT = 32_000  # Below Linux's ephemeral range.
_TRIES = 1_000  # Of 12,000 ports; after this many failures there is hardly a free one.

_CONNECT_TIMEOUT_S = 0.5  # Loopback answers at once, or not at all.


def loopback() -> str:
    """What Airflow takes for the name of this host, under which it asks its log servers."""
    return LOOPBACK


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct ports that were free a moment ago."""
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES):
            if len(found) == count:
                return tuple(found)
            candidate = held.enter_context(socket.socket())
            port = _LOWEST_PORT + randbelow(_HIGHEST_PORT - _LOWEST_PORT)
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
    raise ConfigurationError(
        f"no {count} free ports between {_LOWEST_PORT} and {_HIGHEST_PORT} on {LOOPBACK};"
        " stop some servers"
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # As servers do, so that connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def require_free(port: int, *, variable: str) -> int:
    """Return *port*, which a person asked for by setting *variable*.

    Raises:
        ConfigurationError: another process listens there.
    """
    if not is_free(port):
        raise ConfigurationError(
            f"port {port} on {LOOPBACK} is taken by another process; stop it or set {variable}"
            " to a free port"
        )
    return port


def first_free(*preferred: int) -> int:
    """Return the first of *preferred* that is free, or else any free port."""
    for port in preferred:
        if is_free(port):
            return port
    return free_ports(1)[0]


def accepts_connections(port: int) -> bool:
    """Whether a process listens on this port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            # Equal ends: the kernel connected the socket to itself, and no process listens.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
