"""A running job on the terminal, drawn anew after each look, or as lines where there is none; and for Prometheus."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from ...core.loopback import LoopbackHandler, LoopbackServer
from ...core.schema import Row
from ...errors import CannotServe
from ...watching.exposition import CONTENT_TYPE, exposition
from ...watching.job_lines import JobNews, ScreenLine, job_table
from ..output import print_message, quiet_console
from ..terminal import can_redraw, has_colours

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from ...watching.job import Job

_HOSTS = ("127.0.0.1", "localhost")
_PATHS = ("/", "/metrics")


class JobView:
    """Shows a job on stderr: as a table that stays below all else on a terminal, as lines elsewhere.

    `aside` is the block in which something else is written.
    """

    def __init__(self) -> None:
        self._news = JobNews()
        self._live: Live | None = None
        self._drawn: list[ScreenLine] = []
        self._redraws = can_redraw(sys.stderr)

    def show(self, job: Job, cycles: list[Row]) -> None:
        """Show how the job stands now."""
        if not self._redraws:
            for line in self._news.of(job.standing, time.monotonic()) if job.has_ranks else ():
                print_message(line, kind="job")
            return
        size = quiet_console().size  # stdout may be a pipe
        self._drawn = job_table(job, cycles, size.width - 1, size.height)
        if self._drawn and self._live is None:
            self._start()
        if self._live is not None:
            self._live.update(_text(self._drawn), refresh=True)

    def end(self) -> None:
        """Leave what was drawn last on the terminal."""
        self._stop()
        if self._drawn:
            quiet_console().print(_text(self._drawn), crop=False)
            self._drawn = []

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the table away in the block."""
        was_on = self._live is not None
        self._stop()
        try:
            yield
        finally:
            if was_on:
                self._start()

    def _start(self) -> None:
        from rich.live import Live

        self._live = Live(
            _text(self._drawn), console=quiet_console(), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _text(lines: list[ScreenLine]) -> Text:
    from rich.text import Text

    shows_style = has_colours(sys.stderr)
    text = Text(no_wrap=True, overflow="crop", end="")
    for place, line in enumerate(lines):
        text.append(line.text if place == len(lines) - 1 else f"{line.text}\n", line.style if shows_style else None)
    return text


class MetricsServer(LoopbackServer):
    """Answers Prometheus, which most often runs as a user of its own: so every user of this machine may ask."""

    for_all_users = True

    def __init__(self, port: int) -> None:
        """Listen at the port of 127.0.0.1. Raises CannotServe."""
        try:
            super().__init__(port, _Handler)
        except (OSError, OverflowError) as err:
            why = getattr(err, "strerror", None) or err
            raise CannotServe(f"port {port}: cannot be listened on, {why}; give another --prometheus") from err
        self.text = ""
        """What is answered."""
        self._is_wanted = True
        self._thread = threading.Thread(
            target=lambda: self.serve_while(lambda: self._is_wanted), name="commtrace-metrics", daemon=True
        )
        self._thread.start()

    def update(self, job: Job, cycles: list[Row]) -> None:
        """Answer with the job as it is now."""
        self.text = exposition(job, cycles)

    def end(self) -> None:
        """Listen no more."""
        self._is_wanted = False
        self._thread.join()
        self.server_close()


class _Handler(LoopbackHandler):
    server: MetricsServer

    def do_GET(self) -> None:  # noqa: N802 - as http.server has it
        # A page of another site can have the browser ask here by a name of its own, but not as this machine.
        named = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if named not in _HOSTS:
            self.begin_answer(HTTPStatus.FORBIDDEN, {"Content-Length": 0})
        elif self.path.partition("?")[0] not in _PATHS:
            self.begin_answer(HTTPStatus.NOT_FOUND, {"Content-Length": 0})
        else:
            body = self.server.text.encode("utf-8", "backslashreplace")  # names of folders may be no text
            self.begin_answer(HTTPStatus.OK, {"Content-Type": CONTENT_TYPE, "Content-Length": len(body)})
            self.wfile.write(body)
