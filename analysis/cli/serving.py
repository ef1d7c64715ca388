"""Serve a file to Perfetto's viewer in the browser: on the loopback only, until it has been read once."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Event, Timer
from typing import Any
from urllib.parse import quote

from ...common.disk import content_of
from ..errors import CannotServe

VIEWER = "https://ui.perfetto.dev"
_ADDRESS = ("127.0.0.1", 9001)  # the only one that the viewer may read from
# What a browser says of the viewer's request, and of no picture, frame, script or link of any page. Old ones say none.
_OF_THE_VIEWER = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
_HEADERS = {
    "Access-Control-Allow-Origin": VIEWER,
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",  # the viewer's request is of another mode, which this does not stop
    "Referrer-Policy": "no-referrer",
    "Vary": "Origin",
    "X-Content-Type-Options": "nosniff",
}
_STALLED_S = 60.0
_AT_ONCE = 16
_POLL_S = 0.2


class FileServer(ThreadingHTTPServer):
    """Serve one file at an address that nobody can guess; `is_read` is set once it was read to its end."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a connection that is silent ends with this process

    def __init__(self, file: Path, address: tuple[str, int], request_s: float = 10.0) -> None:
        """Listen at the address; a request may take `request_s` to arrive. Raises OSError if the address is in use."""
        super().__init__(address, _Handler)
        self.address: tuple[str, int] = self.socket.getsockname()
        self.host = _host(self.address)
        self.request_s = request_s
        self.file = file
        self.path = f"/{secrets.token_urlsafe(24)}/{quote(file.name)}"
        self.is_read = Event()
        self._free = BoundedSemaphore(_AT_ONCE)
        self.timeout = _POLL_S

    @property
    def viewer_url(self) -> str:
        """The URL of the viewer with the file."""
        return f"{VIEWER}/#!/?url=http://{self.host}{self.path}"

    def serve(self, patience_s: float) -> bool:
        """Serve for at most `patience_s`; return whether the file was read."""
        until_s = time.monotonic() + patience_s
        while not self.is_read.is_set() and time.monotonic() < until_s:
            self.handle_request()
        return self.is_read.is_set()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - as the base class has it
        """Accept only processes of this user, if the system can tell, and not too many at a time."""
        user = user_of(client_address, self.address)
        return user in (None, 0, os.geteuid()) and self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the request, then allow another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a reader who stopped may read again."""


class _Handler(BaseHTTPRequestHandler):
    """Answer the viewer, which browsers name as the origin, and refuse any other page."""

    server: FileServer
    timeout = _STALLED_S

    def setup(self) -> None:
        """Set a time limit for the whole request, however slowly it arrives."""
        super().setup()
        self._too_late = Timer(self.server.request_s, _shut, [self.connection])
        self._too_late.daemon = True
        self._too_late.start()

    def finish(self) -> None:
        """Stop the timer and finish the answer."""
        self._too_late.cancel()
        super().finish()

    def do_GET(self) -> None:
        """Send the file."""
        if not self._is_from_viewer():
            return
        size = self.server.file.stat().st_size
        self._begin(HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Content-Length": size})
        for part in content_of(self.server.file, size):
            self.wfile.write(part)
        if self._is_taken():
            self.server.is_read.set()

    def do_OPTIONS(self) -> None:
        """Allow a public page to read from this machine, which browsers ask first."""
        if self._is_from_viewer():
            self._begin(HTTPStatus.NO_CONTENT, {"Access-Control-Allow-Private-Network": "true"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Log nothing."""

    def _is_from_viewer(self) -> bool:
        """Whether the viewer asks for the file; others get the same refusal whether it exists or not."""
        self._too_late.cancel()
        asked = self.headers
        is_viewer = asked.get("Origin") == VIEWER and asked.get("Host") == self.server.host
        is_viewer &= all(asked.get(name, value) == value for name, value in _OF_THE_VIEWER.items())
        if is_viewer and secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def _begin(self, status: HTTPStatus, headers: dict[str, object]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _is_taken(self) -> bool:
        """Whether the other side has read everything: then it closes the connection in order."""
        self.connection.shutdown(socket.SHUT_WR)
        try:
            return not self.connection.recv(1)
        except OSError:
            return False


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended
        return


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id whose process has this end of a connection to us, -1 if nobody; None if not known.

    An end that is closed for writing can still read, so its state does not matter.
    Source: Documentation/networking/proc_net_tcp.rst of Linux.
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
                return int(cells[7])
    return -1


def _host(address: tuple[str, int]) -> str:
    """The address as the header `Host` names it."""
    return ":".join(map(str, address))


def _as_kernel_prints(content: bytes) -> str:
    """Four bytes as the kernel prints them: one number in the byte order of this machine."""
    return f"{int.from_bytes(content, sys.byteorder):08X}"


def server_of(file: Path) -> FileServer:
    """Start a server for the file. Raises CannotServe."""
    try:
        return FileServer(file, _ADDRESS)
    except OSError as err:
        where, what_else = _host(_ADDRESS), f"open {file} in {VIEWER} by hand"
        raise CannotServe(f"{where}: cannot be served from, {err.strerror}; end what uses it, or {what_else}") from err


def serve_once(server: FileServer, patience_s: float = 600.0) -> None:
    """Open the viewer, and serve its file until it has been read once, `patience_s` at most. Raises CannotServe."""
    with server:
        webbrowser.open_new_tab(server.viewer_url)
        if not server.serve(patience_s):
            minutes = f"{patience_s / 60:g} minutes"
            raise CannotServe(f"{server.file}: no viewer has read it in {minutes}; open it in {VIEWER} by hand")
