"""What rank 0 shows on stderr while it works: a live line in a terminal, a few plain lines elsewhere."""

import sys
from types import TracebackType
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .messages import Talk

_Reporter = TypeVar("_Reporter", bound="Reporter")


class Reporter:
    """Shows steps, or what `unit` calls them; silent on ranks other than 0. `live`: a moving line in a terminal.

    `steps` is None if their number is not known.
    """

    def __init__(self, *, rank: int, steps: int | None, unit: str = "step", live: bool = True) -> None:
        self._console = Talk(quiet=rank != 0)
        self._steps = steps
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if self._console.is_terminal and rank == 0 and live:
            self._bar = Progress(
                TextColumn(unit),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,  # stdout is data, and may be redirected
            )

    def __enter__(self: _Reporter) -> _Reporter:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            sys.stderr.flush()

    def say(self, line: str) -> None:
        """One line, above the progress bar."""
        self._console.print(line, markup=False)

    def begin(self, what: str, steps: int | None = None) -> None:
        """Something begins that has so many steps of its own; None: it reports nothing before its end."""
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=steps, description=what)

    def advance(self, done: int, text: str, steps: int | None = None) -> bool:
        """Show how many steps are done, of all or of these; False if there is no live line to show it in."""
        if self._bar is None or self._task is None:
            return False
        self._bar.update(self._task, total=steps or self._steps, completed=done, description=text)
        return True
