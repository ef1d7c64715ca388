"""The TensorBoard tab `commtrace`: a list of the runs below the log directory, and the report of each on request.

TensorBoard finds the plugin by the entry point of the installed package. Only here is tensorboard imported.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate  # before Python 3.11 not the built-in one
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

from werkzeug import Request, Response

from tensorboard.plugins import base_plugin

from ...common.processes import ANYWHERE, isolated
from ..core.escaping import printable
from ..core.schema import Row
from ..render.plots.colours import stylesheet
from .listing import NotListed, RunList
from .runs import Stamp, runs_below, stamp_of

_REPORT = "from commtrace.cli import main; sys.exit(main())"
_ROW = "from commtrace.analysis.tensorboard.rows import print_row; print_row(sys.argv[1])"
_ASSETS = Path(__file__).with_name("assets")
_KEPT = 32
_MOST_SAID = 300
_AT_ONCE = 2
"""Reports that are made at a time; each takes a core, and the memory of a run."""
_RETRY_S = "10"
_ERROR_POLICY = "default-src 'none'"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class CommtracePlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The plugin, as TensorBoard calls it."""

    plugin_name = "commtrace"

    def __init__(self, context: base_plugin.TBContext) -> None:
        """Touch no file: TensorBoard waits for it when it starts."""
        self._root = Path(context.logdir or ".")
        self._reports = Reports()
        self._listing = RunList(self._root, _row)

    def is_active(self) -> bool:
        """Whether there is a run below the log directory."""
        return next(runs_below(self._root), None) is not None

    def get_plugin_apps(self) -> dict[str, Application]:
        """The handlers by address below /data/plugin/commtrace."""
        answers = {
            "/index.js": self._script,
            "/style.css": self._style,
            "/runs": self._runs,
            "/report": self._report,
        }
        return {address: Request.application(answer) for address, answer in answers.items()}

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The module that draws the tab, and the tab's name."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="commtrace", disable_reload=True)

    def _names(self) -> dict[str, Path]:
        """The runs by name: their folders below the log directory."""
        return {str(run.relative_to(self._root)): run for run in runs_below(self._root)}

    def _script(self, _: Request) -> Response:
        return _answer((_ASSETS / "index.js").read_bytes(), "text/javascript")

    def _style(self, _: Request) -> Response:
        return _answer((stylesheet() + (_ASSETS / "style.css").read_text(encoding="utf-8")).encode(), "text/css")

    def _runs(self, _: Request) -> Response:
        return _answer(json.dumps(self._listing.rows()).encode(), "application/json")

    def _report(self, request: Request) -> Response:
        named = {printable(name): run for name, run in self._names().items()}
        run = named.get(request.args.get("run", ""))
        if run is None:
            return _error("There is no such run below the log directory any more.", 404)
        try:
            page = self._reports.page(run)
        except ReportFailed as err:  # the run is at fault, not the server
            return _error(str(err), 422)
        except Busy as err:
            answer = _error(f"{err} Choose the run again in a while.", 503)
            answer.headers["Retry-After"] = _RETRY_S
            return answer
        # The page brings its policy along; TensorBoard asks for it in the header, and only its own pages may frame it.
        policy = html.unescape(page.partition(b'Policy" content="')[2].partition(b'"')[0].decode())
        return _answer(page, "text/html", policy=f"{policy}; frame-ancestors 'self'")


class ReportFailed(Exception):
    """The reason why there is no report."""


class Busy(Exception):
    """There is no report yet; ask again."""


class Reports:
    """Reports by run: each made once in its own process until a trace changes, a few at a time."""

    def __init__(self, most_asked_for: int = 64, patience_s: float = 300.0) -> None:
        """Make or let wait at most `most_asked_for` reports at a time; nobody waits longer than `patience_s`."""
        self._most_asked_for, self._patience_s = most_asked_for, patience_s
        self._pages: OrderedDict[Path, tuple[Stamp, bytes]] = OrderedDict()
        self._changing = Lock()
        self._asked_for: dict[Path, Future[bytes]] = {}
        self._places = Semaphore(_AT_ONCE)

    def page(self, run: Path) -> bytes:
        """The page on the run, made once for all who ask at this time. Raises ReportFailed, Busy."""
        try:
            stamp = stamp_of(run)
        except OSError as err:
            raise ReportFailed(f"{run.name}: cannot be read: {err.strerror}") from err
        with self._changing:
            known = self._pages.get(run)
            if known is not None and known[0] == stamp:
                self._pages.move_to_end(run)
                return known[1]
            others = self._asked_for.get(run)
            if others is None:
                if len(self._asked_for) >= self._most_asked_for:
                    raise Busy("Too many other reports are asked for.")
                page = self._asked_for[run] = Future()
        if others is None:
            self._make(run, stamp, page)
            return page.result()
        try:
            return others.result(self._patience_s)
        except TooLate:
            raise Busy("The report is still being made.") from None

    def _make(self, run: Path, stamp: Stamp, page: Future[bytes]) -> None:
        """Make the page when there is a free place, and notify all who wait for it."""
        try:
            if not self._places.acquire(timeout=self._patience_s):
                raise Busy("Other reports are still being made.")
            try:
                made = _made(run)
            finally:
                self._places.release()
            with self._changing:
                self._pages[run] = stamp, made
                self._pages.move_to_end(run)
                while len(self._pages) > _KEPT:
                    self._pages.popitem(last=False)
            page.set_result(made)
        except OSError as err:
            page.set_exception(Busy(f"No process could be started to make the report: {err.strerror}."))
        except BaseException as err:  # noqa: BLE001  (it is raised for each who waits)
            page.set_exception(err)
        finally:
            with self._changing:
                del self._asked_for[run]


def _made(run: Path) -> bytes:
    """Make the page in its own process, which frees its memory and blocks no other tab."""
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        page = Path(folder) / "report.html"
        arguments = ["report", "--keep-going", "--output", str(page), str(run.absolute())]
        command = [sys.executable, *isolated(_REPORT), *arguments]
        done = subprocess.run(command, cwd=ANYWHERE, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
        if not page.is_file():
            raise ReportFailed(done.stderr.strip() or f"{run.name}: the report ended with {done.returncode}")
        return page.read_bytes()


def _row(run: Path) -> Row:
    """Read the run's row in the list, in its own process. Raises NotListed, OSError."""
    command = [sys.executable, *isolated(_ROW), str(run.absolute())]
    done = subprocess.run(command, cwd=ANYWHERE, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    if done.returncode:
        raise NotListed(f"{run.name}: reading it ended with {done.returncode}: {done.stderr.strip()[-_MOST_SAID:]}")
    row: Row = json.loads(done.stdout)
    return row


def _error(message: str, code: int) -> Response:
    text = html.escape(printable(message))
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>No report</title>'
    page = f'<!doctype html><html lang="en">{head}<p>{text}</p></html>'
    return _answer(page.encode("utf-8", "backslashreplace"), "text/html", code=code, policy=_ERROR_POLICY)


def _answer(content: bytes, kind: str, *, code: int = 200, policy: str | None = None) -> Response:
    """An answer with the headers that TensorBoard's security validator requires."""
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    if policy is not None:
        headers["Content-Security-Policy"] = policy
    return Response(content, status=code, content_type=f"{kind}; charset=utf-8", headers=headers)
