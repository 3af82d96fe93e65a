"""Asks whether a Spark Connect server answers, without a session and without its client library.

An HTTP/2 server greets with its settings.  So a driver that hangs is told from one that works: its
port alone would be answered by the kernel.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

DEFAULT_PORT = 15002
CONNECT_TIMEOUT_S = 3.0  # As the store's: across an ocean it takes 0.3 s.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def ask_spark(remote: str) -> None:
    """Return once the server at *remote*, ``sc://host:port``, has greeted.

    Of one behind TLS only the port is asked.

    Raises:
        OSError: nothing listens there, or what does said nothing in CONNECT_TIMEOUT_S.
    """
    parts = urlsplit(remote)
    address = parts.hostname or "localhost", parts.port or DEFAULT_PORT
    with socket.create_connection(address, timeout=CONNECT_TIMEOUT_S) as connection:
        if "use_ssl=true" in parts.path.lower() or "token=" in parts.path.lower():
            return
        connection.sendall(_PREFACE + _NO_SETTINGS)
        if not connection.recv(1):
            raise ConnectionError("it closed the connection without a greeting")
