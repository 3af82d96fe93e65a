"""A proxy before a server on this machine that cuts one connection: a request, or its answer.

It counts what clients send, piece by piece, over all connections.  Where a piece ends is the
kernel's affair, so a test goes on until nothing is left to cut.  A broker of Kafka tells clients
where it is, so they are told the proxy's port in place of its own.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PIECE_BYTES = 65_536
HOST = "127.0.0.1"


class CutWire:
    """The proxy on ``port``; it cuts nothing until it is told to."""

    def __init__(self, upstream_port: int) -> None:
        self.port = 0
        self._upstream_port = upstream_port
        self._pieces: int | None = None  # Until the cut; None where none is due.
        self._loses_answer = False
        self._lock = threading.Lock()

    def cut(self, at: int, *, loses_answer: bool) -> None:
        """Cut the connection of the piece number *at*, from 0, of those that are sent from now on.

        Before the server gets it, or when the server answers, of which nothing arrives.
        """
        with self._lock:
            self._pieces, self._loses_answer = at, loses_answer

    def heal(self) -> bool:
        """Cut nothing any more; whether something was cut."""
        with self._lock:
            was_cut, self._pieces = self._pieces is None, None
            return was_cut

    def accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            _in_thread(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._upstream_port)) as server:
            is_cut = threading.Event()
            answering = _in_thread(self._answer, client, server, is_cut)
            self._ask(client, server, is_cut)
            answering.join()

    def _ask(self, client: socket.socket, server: socket.socket, is_cut: threading.Event) -> None:
        while piece := _received(client):
            if self._is_cut_here():
                is_cut.set()
                if not self._loses_answer:
                    break
            with suppress(OSError):
                server.sendall(piece)
        _hang_up(server)
        if is_cut.is_set():
            _hang_up(client)

    def _answer(
        self, client: socket.socket, server: socket.socket, is_cut: threading.Event
    ) -> None:
        while piece := _received(server):
            if is_cut.is_set():
                break
            with suppress(OSError):
                client.sendall(piece.replace(_told(self._upstream_port), _told(self.port)))
        _hang_up(client, server)

    def _is_cut_here(self) -> bool:
        with self._lock:
            if self._pieces is None:
                return False
            self._pieces = self._pieces - 1 if self._pieces else None
            return self._pieces is None


def _told(port: int) -> bytes:
    """An address as Kafka's protocol has it."""
    return HOST.encode() + struct.pack(">i", port)


def _received(source: socket.socket) -> bytes:
    with suppress(OSError):
        return source.recv(PIECE_BYTES)
    return b""


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_wire(upstream_port: int) -> Iterator[CutWire]:
    wire = CutWire(upstream_port)
    with socket.create_server((HOST, 0), backlog=256) as listener:
        wire.port = listener.getsockname()[1]
        _in_thread(wire.accept, listener)
        yield wire
        listener.shutdown(socket.SHUT_RDWR)


def _in_thread(call: Callable[..., None], *given: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=given, daemon=True)
    thread.start()
    return thread
