"""`commtrace serve`: the page on a run, which reads on while you look."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import CannotServe
from ...recording.options import ReadOptions
from ..output import finite, print_message
from ..reading_options import CeilingFile, Peaks, Runs, analysis_to_show, finish, reads_traces

Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 is any that is free.")]
IdleMinutes = Annotated[
    float,
    typer.Option(
        "--idle-minutes",
        min=0.01,
        callback=finite,
        metavar="M",
        help="End after this many minutes without an open page.",
    ),
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]


@reads_traces
def serve_command(
    runs: Runs,
    port: Port = 0,
    idle_minutes: IdleMinutes = 15.0,
    ceiling: CeilingFile = None,
    peak: Peaks = None,
    *,
    browser: Browser = True,
    reading: ReadOptions,
) -> None:
    """Show the page of `report` from a server on this machine, with every step and every collective.

    A page in a file holds as much as can be sent by mail. This one asks for each step, and for what a late rank did
    before a collective, when you look at it: so runs of many ranks and steps are shown in full. The address holds a
    secret, only your own processes on this machine get an answer, and it ends by itself when the page is closed.

    \b
    Examples:
      commtrace serve traces/my-run
      commtrace serve --no-browser --port 8123 traces/my-run

    On another machine, `ssh -L 8123:127.0.0.1:8123 HOST` brings the page to yours.
    """
    analysis = analysis_to_show(runs, reading, ceiling, peak)
    from ...report.server import ReportServer
    from ..serving import open_in_browser

    try:
        server = ReportServer(analysis, port)
    except OSError as err:
        raise CannotServe(f"port {port}: cannot be listened on, {err.strerror}; give another --port") from err
    for note in analysis.run.notes:
        print_message(note, kind="note")
    with server:
        print_message(f"{server.url} shows the run; end with ctrl-C", kind="note")
        if browser:
            open_in_browser(server.url)
        server.serve_until_idle(60 * idle_minutes)
    finish(analysis)
