"""`--history` of commands that read one run: keep it among the captures of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import print_message

if TYPE_CHECKING:
    from ..results.analysis import Analysis

HistoryInto = Annotated[
    Path | None,
    typer.Option(
        "--history",
        metavar="FILE",
        help="Add this to the captures of this machine in FILE: compare --history learns from them how much runs of a "
        "program differ.",
    ),
]


def keep(history: Path, capture: Analysis, folder: Path | None = None) -> None:
    """Add a capture to the history, or say why it says nothing; `folder` is that of its run. Raises UnreadableFile."""
    from ..comparison.history import keep_in_history

    why = keep_in_history(history, capture, folder)
    if why is not None:
        print_message(f"{history}: {capture.run.name} is not added: {why}", kind="note")
