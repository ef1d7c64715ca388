"""A server on the loopback that answers processes of this user only, unless it says so, and that no client can hold up.

Every user of the machine can read the address on the browser's command line. So on Linux it also looks at whose process
a connection comes from.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_OF_ANOTHER_USER = (
    b"HTTP/1.0 403 Forbidden\r\nContent-Type: text/plain\r\n\r\n"
    b"Only processes of the user who started this server get an answer.\n"
)
_REQUEST_S = 10.0
_STALLED_S = 60.0
_AT_ONCE = 16
_POLL_S = 0.2


class LoopbackServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1. A request has to arrive whole within `request_s`, and 16 connections are open at most.

    If all are, the one that has waited longest for its request makes room. With `for_all_users`, processes of other
    users of this machine get an answer too.
    """

    for_all_users = False
    daemon_threads = True
    block_on_close = False  # a connection that is silent ends with this process
    timeout = _POLL_S
    request_queue_size = 128  # if many connect at once, those that do not fit try again a second later

    def __init__(self, port: int, handler: type[LoopbackHandler], request_s: float = _REQUEST_S) -> None:
        """Listen at the port; 0 is any that is free. Raises OSError."""
        super().__init__((LOOPBACK, port), handler)
        self._request_s = request_s
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._arriving: dict[socket.socket, float] = {}  # when time is up, the first one first

    def serve_while(self, is_wanted: Callable[[], bool]) -> None:
        """Serve until `is_wanted` says no, which is asked after each connection, and five times a second."""
        while is_wanted():
            self.handle_request()
            with self._lock:
                for connection in [one for one, until_s in self._arriving.items() if time.monotonic() > until_s]:
                    self._shut(connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept only processes of this user, if the system can tell, and not too many at a time."""
        if not self.for_all_users and not self._is_ours(client_address):
            with suppress(OSError):
                request.sendall(_OF_ANOTHER_USER)
            return False
        with self._lock:
            if len(self._open) == _AT_ONCE and self._arriving:
                self._shut(next(iter(self._arriving)))
            if len(self._open) == _AT_ONCE:
                return False
            self._open.add(request)
            self._arriving[request] = time.monotonic() + self._request_s
        return True

    def _is_ours(self, client_address: Any) -> bool:
        return _user_of(client_address, (LOOPBACK, self.server_port)) in (None, 0, os.geteuid())

    def has_arrived(self, connection: socket.socket) -> None:
        """Note that the request of a connection is there: its answer may take longer."""
        with self._lock:
            self._arriving.pop(connection, None)

    def shutdown_request(self, request: Any) -> None:
        """End a connection, which makes room for another one."""
        with self._lock:
            self._arriving.pop(request, None)
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away: they may ask again."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _shut(self, connection: socket.socket) -> None:
        """End a connection whose request has not arrived; its thread then ends at once."""
        del self._arriving[connection]
        self._open.remove(connection)
        with suppress(OSError):  # it has ended
            connection.shutdown(socket.SHUT_RDWR)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Handle one request: answers are kept nowhere and of use to no other page, and nothing is logged."""

    server: LoopbackServer
    timeout = _STALLED_S
    own_headers: Mapping[str, str] = MappingProxyType({})
    """Headers of every answer beside those of all servers."""

    def parse_request(self) -> bool:
        """Read the headers, which ends the request: nothing that is sent after them is read."""
        try:
            return super().parse_request()
        finally:
            self.server.has_arrived(self.connection)

    def begin_answer(self, status: HTTPStatus, headers: dict[str, object]) -> None:
        """Send the status and headers of an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in (_HEADERS | dict(self.own_headers)).items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Log nothing."""


def _user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id whose process has this end of a connection to us, -1 if nobody; None if not known.

    An end that is closed for writing can still read, so its state does not matter. One that no process has open any
    more says user 0, and inode 0.
    Source: Documentation/networking/proc_net_tcp.rst of Linux, and get_timewait4_sock in net/ipv4/tcp_ipv4.c.
    """
    ends = [f"{_as_kernel_prints(socket.inet_aton(host))}:{port:04X}" for host, port in (client, server)]
    for table, mapped in (("tcp", ""), ("tcp6", f"{0:016X}{_as_kernel_prints(bytes((0, 0, 255, 255)))}")):
        try:
            rows = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            if mapped:  # there is no IPv6 here
                continue
            return None
        for cells in map(str.split, rows):
            if cells[1:3] == [f"{mapped}{end}" for end in ends]:
                return int(cells[7]) if cells[9] != "0" else -1
    return -1


def _as_kernel_prints(content: bytes) -> str:
    """Four bytes as the kernel prints them: one number in the byte order of this machine."""
    return f"{int.from_bytes(content, sys.byteorder):08X}"
