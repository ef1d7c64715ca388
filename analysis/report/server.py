"""Serve the page on a run: the same page, which asks for each step and each late rank when it is looked at.

On the loopback only, at an address that nobody can guess. It ends by itself when no page has been open for a while.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from ..errors import NothingMeasured
from ..results.analysis import Analysis
from .page import live_policy
from .run_report import live_page
from .steps import NameNumbers, StepsOfRun, compact_json

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_POLL_S = 0.5
_STALLED_S = 30.0
_SELDOM_S = 60.0
"""An open page asks at least so often, whatever else it does."""
_LOOPBACK = {"127.0.0.1", "localhost"}


class ReportServer(ThreadingHTTPServer):
    """Serves the page of one run, its steps, and what late ranks did, at `url`."""

    daemon_threads = True
    block_on_close = False  # a connection that is silent ends with this process

    def __init__(self, analysis: Analysis, port: int = 0) -> None:
        """Make the page and listen; port 0 is any that is free. Raises OSError."""
        try:
            self._steps: StepsOfRun | None = StepsOfRun(analysis)
        except NothingMeasured:
            self._steps = None
        self._page = live_page(analysis, self._steps).html.encode("utf-8", "backslashreplace")
        self._secret = secrets.token_urlsafe(24)
        self._one_at_a_time = threading.Lock()
        self._is_ended = threading.Event()
        self._last_asked_s = time.monotonic()
        self._idle_s = _SELDOM_S
        super().__init__(("127.0.0.1", port), _Handler)
        self.timeout = _POLL_S

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/{self._secret}/"

    def serve_until_idle(self, idle_s: float) -> None:
        """Serve until nothing has been asked for so long, or `end`; an open page asks thrice in that time."""
        self._idle_s = idle_s
        while time.monotonic() - self._last_asked_s < idle_s and not self._is_ended.is_set():
            self.handle_request()

    def end(self) -> None:
        """Let another thread, which serves, end within half a second."""
        self._is_ended.set()

    def answer(self, address: str) -> tuple[str, bytes] | None:
        """Type and content of what an address asks for; None if there is no such thing."""
        parts = urlsplit(address)
        begin, _, what = parts.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(begin.encode(), self._secret.encode()):
            return None
        self._last_asked_s = time.monotonic()
        if what == "":
            return "text/html; charset=utf-8", self._page
        if what == "alive":
            return "application/json", compact_json({"again_s": min(self._idle_s / 3, _SELDOM_S)}).encode()
        number = _number(parts.query)
        make: dict[str, Callable[[StepsOfRun, str, int], dict[str, object] | None]] = {"step": _step, "behind": _behind}
        if self._steps is None or number is None or what not in make:
            return None
        with self._one_at_a_time:  # tables are computed when first asked for, which two must not do at once
            content = make[what](self._steps, *number)
        return None if content is None else ("application/json", compact_json(content).encode())

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a browser that went away may ask again."""


def _number(query: str) -> tuple[str, int] | None:
    """The name and number in `n=11` or `collective=23`; None if there is none."""
    for key in ("n", "collective"):
        values = parse_qs(query, max_num_fields=4).get(key, [])
        if len(values) == 1 and values[0].lstrip("-").isdecimal() and len(values[0]) <= 20:
            return key, int(values[0])
    return None


def _step(run: StepsOfRun, key: str, number: int) -> dict[str, object] | None:
    step = run.step_of(number) if key == "collective" else number
    if step is None or step not in run.order:
        return None
    names = NameNumbers()
    return {"steps": [run.step(step, names)], "names": names.texts}


def _behind(run: StepsOfRun, _: str, number: int) -> dict[str, object] | None:
    names = NameNumbers()
    found = run.behind(number, names)
    return None if found is None else {"behind": {str(number): found}, "names": names.texts}


class _Handler(BaseHTTPRequestHandler):
    """Answer requests of the page itself, and of nobody else."""

    server: ReportServer
    timeout = _STALLED_S

    def do_GET(self) -> None:
        """Send the page, or a part of what it shows."""
        # A foreign page may lead a browser here under another name, or as part of itself: neither gets an answer. The
        # port may be another one, as `ssh -L` has it.
        hosts = self.headers.get_all("Host", [])
        is_own = len(hosts) == 1 and hosts[0].partition(":")[0] in _LOOPBACK
        is_own &= self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        answer = self.server.answer(self.path) if is_own else None
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = answer
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", live_policy())
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Log nothing."""
