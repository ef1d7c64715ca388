"""Serve the page on a run: the same page, which asks for each step and each late rank when it is looked at.

For this user only, at an address that nobody can guess. It ends by itself when no page has been open for a while.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from types import MappingProxyType

from ..core.loopback import LOOPBACK, LoopbackHandler, LoopbackServer
from ..errors import AnalysisError, NothingMeasured
from ..results.analysis import Analysis
from .page import live_policy
from .run_report import live_page
from .steps import NameNumbers, StepsOfRun, compact_json

_SELDOM_S = 60.0
"""An open page asks at least so often, whatever else it does."""
# The port may be another one, as `ssh -L` has it.
_OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?")
_ASKED = re.compile(r"(n|collective)=(-?[0-9]{1,18})")


class ReportServer(LoopbackServer):
    """Serves the page of one run, its steps, and what late ranks did, at `url`."""

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
        super().__init__(port, _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self._secret}/"

    def serve_until_idle(self, idle_s: float) -> None:
        """Serve until nothing has been asked for so long, or `end`; an open page asks thrice in that time."""
        self._idle_s = idle_s
        self.serve_while(lambda: time.monotonic() - self._last_asked_s < idle_s and not self._is_ended.is_set())

    def end(self) -> None:
        """Let another thread, which serves, end within half a second."""
        self._is_ended.set()

    def answer(self, address: str) -> tuple[str, bytes] | None:
        """Type and content of what an address asks for; None if there is no such thing."""
        path, _, query = address.partition("?")
        begin, _, what = path.removeprefix("/").partition("/")
        if not secrets.compare_digest(begin.encode(), self._secret.encode()):
            return None
        self._last_asked_s = time.monotonic()
        if what == "":
            return "text/html; charset=utf-8", self._page
        if what == "alive":
            return "application/json", compact_json({"again_s": min(self._idle_s / 3, _SELDOM_S)}).encode()
        asked = _ASKED.fullmatch(query)
        make: dict[str, Callable[[StepsOfRun, str, int], dict[str, object] | None]] = {"step": _step, "behind": _behind}
        if self._steps is None or asked is None or what not in make:
            return None
        with self._one_at_a_time:  # tables are computed when first asked for, which two must not do at once
            content = make[what](self._steps, asked[1], int(asked[2]))
        return None if content is None else ("application/json", compact_json(content).encode())


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


class _Handler(LoopbackHandler):
    """Answer requests of the page itself, and of nobody else."""

    server: ReportServer
    own_headers = MappingProxyType({"Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY"})

    def do_GET(self) -> None:  # noqa: N802 - as the base class has it
        """Send the page, or a part of what it shows."""
        # A foreign page may lead a browser here under another name, or as part of itself: neither gets an answer.
        hosts = self.headers.get_all("Host", [])
        is_own = len(hosts) == 1 and _OWN_HOST.fullmatch(hosts[0]) is not None
        is_own &= self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        try:
            answer = self.server.answer(self.path) if is_own else None
        except AnalysisError as err:  # a file has gone, say
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(err))
            return
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = answer
        self.begin_answer(
            HTTPStatus.OK,
            {"Content-Type": kind, "Content-Length": len(content), "Content-Security-Policy": live_policy()},
        )
        self.wfile.write(content)
