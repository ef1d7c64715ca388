"""A file handed to Perfetto's viewer in the browser: served once, on the loopback, to nobody else."""

from __future__ import annotations

import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

from ..core.disk import content_of
from ..errors import CannotServe

VIEWER = "https://ui.perfetto.dev"
_ADDRESS = ("127.0.0.1", 9001)  # the only one that the viewer may read from
_HOST = ":".join(map(str, _ADDRESS))


class _Server(HTTPServer):
    """Serves one file; `done` once it was fetched."""

    allow_reuse_address = True

    def __init__(self, file: Path) -> None:
        super().__init__(_ADDRESS, _Handler)
        self.file = file
        self.done = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: who stopped reading may read again."""


class _Handler(BaseHTTPRequestHandler):
    """Answers the viewer, which a browser names as the origin, and refuses any other page."""

    server: _Server
    timeout = 60

    def do_GET(self) -> None:
        """The file."""
        if not self._welcome():
            return
        if self.path != _path(self.server.file):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        size = self.server.file.stat().st_size
        self._begin(HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Content-Length": size})
        for part in content_of(self.server.file, size):
            self.wfile.write(part)
        self.server.done = True

    def do_OPTIONS(self) -> None:
        """Browsers ask first whether a public page may read from this machine."""
        if self._welcome():
            self._begin(HTTPStatus.NO_CONTENT, {"Access-Control-Allow-Private-Network": "true"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Nothing."""

    def _welcome(self) -> bool:
        if self.headers.get("Host") == _HOST and self.headers.get("Origin", VIEWER) == VIEWER:
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def _begin(self, status: HTTPStatus, headers: dict[str, object]) -> None:
        self.send_response(status)
        allowed = {"Access-Control-Allow-Origin": VIEWER, "Cache-Control": "no-store", "Vary": "Origin"}
        for name, value in (allowed | headers).items():
            self.send_header(name, str(value))
        self.end_headers()


def _path(file: Path) -> str:
    return f"/{quote(file.name)}"


def viewer_url(file: Path) -> str:
    """Where the viewer shows a file that is served here."""
    return f"{VIEWER}/#!/?url=http://{_HOST}{_path(file)}"


def serve_once(file: Path) -> None:
    """Open the viewer, and serve the file until it was fetched once. Raises CannotServe."""
    try:
        server = _Server(file)
    except OSError as err:
        raise CannotServe(
            f"{_HOST}: cannot be served from, {err.strerror}; end what uses it, or open {file} in {VIEWER} by hand"
        ) from err
    with server:
        webbrowser.open_new_tab(viewer_url(file))
        while not server.done:
            server.handle_request()
