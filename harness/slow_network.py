"""A proxy before a server on this machine that is as far, and as narrow, as a network.

Whatever a side sends arrives half of *round_trip_ms* later, and a connection carries at most
*bytes_per_second* in each direction.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from urllib.parse import urlsplit

PIECE_BYTES = 65_536


@contextmanager
def slow_network(
    upstream_url: str, *, round_trip_ms: float, bytes_per_second: float = float("inf")
) -> Iterator[str]:
    """The address at which the server of *upstream_url* answers slowly, within the block."""
    upstream = urlsplit(upstream_url)
    address = (upstream.hostname or "", upstream.port or 80)
    delay_s = round_trip_ms / 2_000

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(address)
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _in_thread(_carry, one, other, delay_s, bytes_per_second)

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        _in_thread(accept, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _carry(
    source: socket.socket, target: socket.socket, delay_s: float, bytes_per_second: float
) -> None:
    arriving: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    _in_thread(_deliver, arriving, target)
    is_free_at = 0.0
    while True:
        try:
            piece = source.recv(PIECE_BYTES)
        except OSError:
            piece = b""
        now = time.monotonic()
        is_free_at = max(is_free_at, now) + len(piece) / bytes_per_second
        arriving.put((is_free_at + delay_s, piece))
        if not piece:
            return
        time.sleep(max(0.0, is_free_at - now))  # Else the sender would fill our memory.


def _deliver(arriving: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
    while True:
        at, piece = arriving.get()
        time.sleep(max(0.0, at - time.monotonic()))
        with suppress(OSError):  # It hung up.
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(piece)


def _in_thread(call: object, *given: object) -> None:
    threading.Thread(target=call, args=given, daemon=True).start()  # type: ignore[arg-type]
