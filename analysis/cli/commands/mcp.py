"""`commtrace mcp`: answers for agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ....common.extras import not_installed
from ...errors import MissingLibrary

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER...",
        exists=True,
        file_okay=False,
        help="Folders of runs and dumps: what lies below them can be read, and nothing else.",
    ),
]


def mcp_command(folders: Folders) -> None:
    """Serve measurements to an agent, over standard input and output, by the Model Context Protocol.

    Six tools: open_run, table, explain, predict, compare and hang. They read what lies below the folders and write
    nothing. An answer holds 20 rows at most, each with its place in the table that holds it, and what cannot be known
    is said with the reason. It needs the extra `agents`.

    \b
    Examples:
      commtrace mcp traces
      claude mcp add commtrace -- commtrace mcp /data/traces
    """
    from ...agents.roots import Roots

    try:
        from ...agents.server import mcp_server
    except ModuleNotFoundError as err:
        raise MissingLibrary(not_installed((err.name or "mcp").partition(".")[0], "an MCP server", "agents")) from err
    mcp_server(Roots(folders)).run()
