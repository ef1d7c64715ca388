"""Serve a file to Perfetto's viewer in the browser: on the loopback only, until it has been read once."""

from __future__ import annotations

import secrets
import socket
import time
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from urllib.parse import quote

from ...common.disk import content_of
from ..core.loopback import LOOPBACK, LoopbackHandler, LoopbackServer
from ..errors import CannotServe

VIEWER = "https://ui.perfetto.dev"
_PORT = 9001  # the only one that the viewer may read from
# What a browser says of the viewer's request, and of no picture, frame, script or link of any page. Old ones say none.
_OF_THE_VIEWER = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}


class FileServer(LoopbackServer):
    """Serve one file at an address that nobody can guess; `is_read` is set once it was read to its end."""

    def __init__(self, file: Path, port: int) -> None:
        """Listen at the port; 0 is any that is free. Raises OSError if it is in use."""
        super().__init__(port, _Handler)
        self.host = f"{LOOPBACK}:{self.server_port}"
        self.file = file
        self.path = f"/{secrets.token_urlsafe(24)}/{quote(file.name)}"
        self.is_read = Event()

    @property
    def viewer_url(self) -> str:
        """The URL of the viewer with the file."""
        return f"{VIEWER}/#!/?url=http://{self.host}{self.path}"

    def serve(self, patience_s: float) -> bool:
        """Serve for at most `patience_s`; return whether the file was read."""
        until_s = time.monotonic() + patience_s
        self.serve_while(lambda: not self.is_read.is_set() and time.monotonic() < until_s)
        return self.is_read.is_set()


class _Handler(LoopbackHandler):
    """Answer the viewer, which browsers name as the origin, and refuse any other page."""

    server: FileServer
    # The viewer's request is of another mode than those that Cross-Origin-Resource-Policy stops.
    own_headers = MappingProxyType({"Access-Control-Allow-Origin": VIEWER, "Vary": "Origin"})

    def do_GET(self) -> None:  # noqa: N802 - as the base class has it
        """Send the file."""
        if not self._is_from_viewer():
            return
        size = self.server.file.stat().st_size
        self.begin_answer(HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Content-Length": size})
        for part in content_of(self.server.file, size):
            self.wfile.write(part)
        if self._is_taken():
            self.server.is_read.set()

    def do_OPTIONS(self) -> None:  # noqa: N802 - as the base class has it
        """Allow a public page to read from this machine, which browsers ask first."""
        if self._is_from_viewer():
            self.begin_answer(HTTPStatus.NO_CONTENT, {"Access-Control-Allow-Private-Network": "true"})

    def _is_from_viewer(self) -> bool:
        """Whether the viewer asks for the file; others get the same refusal whether it exists or not."""
        asked = self.headers
        is_viewer = asked.get("Origin") == VIEWER and asked.get("Host") == self.server.host
        is_viewer &= all(asked.get(name, value) == value for name, value in _OF_THE_VIEWER.items())
        if is_viewer and secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def _is_taken(self) -> bool:
        """Whether the other side has read everything: then it closes the connection in order."""
        self.connection.shutdown(socket.SHUT_WR)
        try:
            return not self.connection.recv(1)
        except OSError:
            return False


def open_in_browser(url: str) -> None:
    """Open a URL in the browser while this thread goes on: a browser on the terminal runs until it is closed."""

    def show() -> None:
        with suppress(webbrowser.Error, OSError):  # whoever asked has the URL on the terminal, too
            webbrowser.open_new_tab(url)

    Thread(target=show, name="commtrace-browser", daemon=True).start()


def server_of(file: Path) -> FileServer:
    """Start a server for the file. Raises CannotServe."""
    try:
        return FileServer(file, _PORT)
    except OSError as err:
        what_else = f"open {file} in {VIEWER} by hand"
        raise CannotServe(
            f"{LOOPBACK}:{_PORT}: cannot be served from, {err.strerror}; end what uses it, or {what_else}"
        ) from err


def serve_once(server: FileServer, patience_s: float = 600.0) -> None:
    """Open the viewer, and serve its file until it has been read once, `patience_s` at most. Raises CannotServe."""
    with server:
        open_in_browser(server.viewer_url)
        if not server.serve(patience_s):
            minutes = f"{patience_s / 60:g} minutes"
            raise CannotServe(f"{server.file}: no viewer has read it in {minutes}; open it in {VIEWER} by hand")
