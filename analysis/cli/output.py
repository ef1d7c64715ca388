"""Output of all commands: options, messages and files. Nothing else writes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from ...common.disk import Writer, new_folder, remove_partial_files, replacing, write_all
from ...common.option_groups import takes
from ...common.wording import counted
from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.pivots import BadChoice, CrossTable, Pivot
from ..core.places.files import replace_file
from ..core.places.place import is_remote
from ..core.process import finishing_writes
from ..core.schema import plain
from ..core.table_choice import Condition, SortBy, TableChoice
from ..errors import UnreadableFile
from .terminal import has_colours, marked, takes_only_ascii, width_of_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from ..render import Table
    from ..render.screen import Screen

WHOLE_TABLE = TableChoice()
_QUIET_S = 1.0
_STDOUT = 1


def finite(value: float | None) -> float | None:
    """Check the number of an option, which is parsed from `inf`, `nan` and `1e400` as well. Raises BadParameter."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


class Format(str, Enum):
    """Format of a table."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    json = "json"
    latex = "latex"


_BY_SUFFIX = {".csv": Format.csv, ".md": Format.markdown, ".json": Format.json, ".tex": Format.latex}

OutputFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        rich_help_panel="Output",
        help="How the output is written.",
        show_default="by the suffix of --output, table otherwise",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        rich_help_panel="Output",
        help="Write to this file instead of stdout, as its suffix says (.csv, .json, .md, .tex; others: table), unless "
        "--format is given.",
    ),
]
Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        rich_help_panel="Output",
        help="Show every column and rank, even if they do not fit the terminal.",
    ),
]


def _columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """The columns of the tables that a command prints which begin like that, for a shell that completes them."""
    from .column_help import column_sections

    names = [name for _, rows in column_sections(ctx.command.name or "") for name, _ in rows]
    return [name for name in names if name.startswith(incomplete)]


def _last_column(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same for the last of several columns."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _columns(ctx, last)]


_CHOSEN = "Rows and columns"
RowConditions = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        rich_help_panel=_CHOSEN,
        metavar="CONDITION",
        autocompletion=_columns,
        help="Only rows like 'rank=3', 'dur_ns>1ms' or 'name~gemm' (contains); with = != < <= > >= ~; repeatable.",
    ),
]
SortColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--sort",
        rich_help_panel=_CHOSEN,
        metavar="COLUMN",
        autocompletion=_columns,
        help="Sort by this column: numbers from the largest, text from A. COLUMN:asc and COLUMN:desc choose; "
        "repeatable.",
    ),
]
FirstRows = Annotated[
    int | None,
    typer.Option("--top", metavar="N", min=1, rich_help_panel=_CHOSEN, help="Only the first N rows."),
]


ShownColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        rich_help_panel=_CHOSEN,
        metavar="COLUMN,...",
        autocompletion=_last_column,
        help="Only these columns, in this order, in every format.",
    ),
]
CrossColumns = Annotated[
    str | None,
    typer.Option(
        "--pivot",
        rich_help_panel=_CHOSEN,
        metavar="rows=A,columns=B,values=C,...",
        help="A cross table: a row for each A, columns for each B, and C (and more) in its cells.",
    ),
]


@contextmanager
def progress() -> Iterator[Callable[[Path, int, int], None] | None]:
    """Show on a terminal which file is being read, once that takes a while."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.text import Text

    with quiet_console().status("reading") as status:
        yield lambda path, number, count: status.update(
            Text(f"reading {number + 1} of {count}: {printable(path.name)}")
        )


class BeingRead(Protocol):
    """Files being read."""

    @property
    def paths(self) -> Sequence[Path]: ...  # noqa: D102 - as `reading.pool.Reading` has them
    @property
    def total_bytes(self) -> int: ...  # noqa: D102
    @property
    def files_read(self) -> int: ...  # noqa: D102


@contextmanager
def asking(paths: Iterable[Path]) -> Iterator[None]:
    """Show on a terminal which URL is being listed, as the network may be slow."""
    remote = [path for path in paths if is_remote(path)]
    if not remote or not sys.stderr.isatty():
        yield
        return
    from rich.text import Text

    with quiet_console().status(Text(f"asking for {printable(str(remote[0]))}")):
        yield


@contextmanager
def reading_progress(reading: BeingRead, begun: float) -> Iterator[Callable[[int], None] | None]:
    """Show on a terminal how much has been read and the time left, from a second after `begun`.

    `begun` is a moment of `time.monotonic`.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    files = TextColumn(f"{{task.fields[files]}}/{counted(len(reading.paths), 'file')}")
    columns = (BarColumn(), DownloadColumn(), files, TimeRemainingColumn(), TextColumn("left"))
    bar = Progress(TextColumn("reading"), *columns, console=quiet_console(), transient=True)
    task = bar.add_task("", total=reading.total_bytes, files=0)

    def report(done: int) -> None:
        bar.update(task, completed=done, files=reading.files_read)
        if time.monotonic() - begun > _QUIET_S and not bar.live.is_started:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()


class _Analysing(logging.Handler):
    """What is being computed, on one line of a terminal that is written anew, from a second after `begun`."""

    def __init__(self, begun: float) -> None:
        super().__init__(logging.DEBUG)
        self._begun, self._phase, self._is_shown = begun, "", False

    def emit(self, record: logging.LogRecord) -> None:
        words = printable(record.getMessage())
        self._phase = words if record.levelno >= logging.INFO else self._phase
        line = self._phase if record.levelno >= logging.INFO else f"{self._phase}, {words}"
        if time.monotonic() - self._begun > _QUIET_S:
            room = max(shutil.get_terminal_size().columns - len("analysing: ") - 1, 0)
            print(f"\r\x1b[2Kanalysing: {line[:room]}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


_PHASES = logging.getLogger("commtrace.analysis")


def show_phases(begun: float) -> None:
    """Show on a terminal what is computed after the reading, until `end_phases`; `begun` is as for `reading_progress`.

    Tables are made when something asks for them, so there is no one block in which that happens.
    """
    if sys.stderr.isatty() and not _PHASES.isEnabledFor(logging.INFO):  # the log says so already
        _PHASES.addHandler(_Analysing(begun))
        _PHASES.setLevel(logging.DEBUG)


def clear_phases() -> None:
    """Take the line away, before something else is written."""
    for handler in _PHASES.handlers:
        if isinstance(handler, _Analysing):
            handler.clear()


def end_phases() -> None:
    """Show nothing more."""
    clear_phases()
    for handler in [one for one in _PHASES.handlers if isinstance(one, _Analysing)]:
        _PHASES.removeHandler(handler)
        _PHASES.setLevel(logging.NOTSET)


def quiet_console() -> Console:
    """A console on stderr that never hides the cursor: a signal that ends us would leave it hidden."""
    from rich.console import Console

    class Shown(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - as rich has it
            return False

    return Shown(stderr=True)


def accept_any_text() -> None:
    """Let stdout and stderr take any text; if the shell closed one, no other file takes its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it stays open
        getattr(sys, name).reconfigure(errors="backslashreplace")


def print_message(message: str, kind: str = "error") -> None:
    """Print one line on stderr, without control characters: names in it come from files."""
    clear_phases()
    print(f"{marked(kind, sys.stderr)}: {printable(message)}", file=sys.stderr)


def write_out(text: str, output: Path | None) -> None:
    """Write to stdout, or to a file, whole or not at all. Raises UnreadableFile."""
    if output is None:
        write_if_read(text)
        return
    write_parts([text.encode("utf-8", "backslashreplace")], output)


def write_if_read(text: str) -> bool:
    """Write to stdout at once, and return whether it is still read. Raises UnreadableFile."""
    clear_phases()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as err:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again at its end
        if not isinstance(err, BrokenPipeError):
            raise UnreadableFile(f"stdout: cannot be written: {err.strerror}") from err
        return False  # the reader, head(1) for one, has seen enough
    return True


def write_parts(parts: Iterable[bytes], output: Path) -> None:
    """Write to a file, whole or not at all. Raises UnreadableFile."""
    clear_phases()
    try:
        _write_file(parts, output)
    except OSError as err:
        raise UnreadableFile(f"{output}: cannot be written: {err.strerror}") from err


def check_new_folder(output: Path) -> None:
    """Raise UnreadableFile unless the path is free or an empty folder."""
    if output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir()))):
        raise UnreadableFile(f"{output}: is there already; name a new folder")


def write_folder(files: Mapping[str, bytes], output: Path) -> None:
    """Write a new folder, whole or not at all. Raises UnreadableFile."""
    try:
        new_folder(output, files)
    except OSError as err:
        raise UnreadableFile(f"{output}: cannot be written: {err.strerror}") from err


def replace_among(folder: Path, pattern: str, name: str, content: bytes) -> None:
    """Write a file in place of those that match the pattern; make the folder if needed. Raises UnreadableFile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.glob(pattern)) - {folder / name}
        replace_file(folder / name, [content])
        for file in before:
            file.unlink(missing_ok=True)
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be written to: {err.strerror}") from err


@contextmanager
def replacing_in(folder: Path) -> Iterator[Callable[[str], Writer]]:
    """Files that replace those of their names in a folder, all together, when the block ends without an error.

    The folder is made if needed. A signal that ends the program leaves nothing begun behind. Raises UnreadableFile.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial_files(folder)
        with finishing_writes(), ExitStack() as files:
            yield lambda name: files.enter_context(replacing(folder / name))
    except UnreadableFile:
        raise
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be written to: {err.strerror}") from err


def _write_file(parts: Iterable[bytes], output: Path) -> None:
    """Write to the file, pipe or device at `output`. Raises OSError."""
    try:
        status = output.stat()
    except FileNotFoundError:
        status = None
    if status is not None and _is_stdout(status):
        _write_each(_STDOUT, parts)
    elif status is not None and not stat.S_ISREG(status.st_mode):
        descriptor = os.open(output, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            _write_each(descriptor, parts)
        finally:
            os.close(descriptor)
    elif output.is_symlink():
        raise OSError(errno.ELOOP, f"is a link to {output.readlink()}; name the file itself, or remove the link")
    else:
        replace_file(output, parts, mode=None if status is None else stat.S_IMODE(status.st_mode) & 0o777)


def _write_each(descriptor: int, parts: Iterable[bytes]) -> None:
    """Write all parts to a descriptor. Raises OSError."""
    for part in parts:
        write_all(descriptor, part)


def _is_stdout(status: os.stat_result) -> bool:
    """Whether the file is that of stdout, whatever its path."""
    try:
        return os.path.samestat(status, os.fstat(_STDOUT))
    except OSError:  # the shell closed it
        return False


@dataclass(frozen=True)
class Writing:
    """Output options: the format, the file, and which rows."""

    format: Format
    output: Path | None
    everything: bool
    choice: TableChoice = WHOLE_TABLE
    first: int | None = None
    """How many rows people see of a table that adds up to a step, unless they choose with --top."""

    @property
    def screen(self) -> Screen:
        """The terminal written to, or a screen without a limit of width."""
        from ..render.screen import Screen

        width = None if self.output is not None or self.everything else width_of_stdout()
        return Screen(
            width=width,
            worst_only=width is not None and self.choice == WHOLE_TABLE,
            everything=self.everything,
            wanted=self.choice.columns or self.choice.named,
            colour=self.output is None and has_colours(sys.stdout),
            ascii_only=takes_only_ascii(sys.stdout),
        )

    @property
    def for_people(self) -> bool:
        """Whether the format is for people, who get a sentence if the table is empty."""
        return self.format is Format.table

    def check(self, name: str) -> None:
        """Raise BadParameter if the table lacks a chosen column; called before anything is read."""
        for option, choice in (
            ("--where", TableChoice(where=self.choice.where)),
            ("--sort", TableChoice(sort=self.choice.sort)),
            ("--columns", TableChoice(columns=self.choice.columns)),
            ("--pivot", TableChoice(pivot=self.choice.pivot)),
        ):
            try:
                choice.check(CATALOG[name].schema)
            except BadChoice as err:
                raise typer.BadParameter(str(err), param_hint=option) from err

    def needs_one_table(self) -> None:
        """Raise BadParameter if rows or columns are chosen and the output is more than one table."""
        if self.choice != WHOLE_TABLE:
            given = (name for name, value in vars(self.choice).items() if value)
            raise typer.BadParameter("chooses from one table; name it by --by", param_hint=f"--{next(given)}")

    def chosen(self, name: str, table: Table, top_for_each: Sequence[str] = ()) -> Table:
        """The chosen rows, with all columns. Raises BadParameter."""
        self.check(name)
        if self.choice == WHOLE_TABLE:
            return table
        rows = self.choice.of(plain(table), top_for_each)
        if len(table) and not len(rows):
            print_message(f"no row of {name} fulfils every --where", kind="note")
        return rows

    def text(self, text: str) -> None:
        """Write text that is already in the format. Raises UnreadableFile."""
        write_out(text, self.output)

    def table(self, name: str, table: Table, top_for_each: Sequence[str] = ()) -> None:
        """Write the chosen rows and columns; with `top_for_each`, --top counts for each combination of these columns.

        Raises BadParameter if the table lacks a column that was asked for, or rows share a cell of a cross table.
        """
        from ..render import CROSS_FORMATS, FORMATS, as_text, cross_as_text

        rows = self.chosen(name, table, top_for_each)
        try:
            shown = self.choice.shaped(plain(rows)) if self.choice.shapes else rows
        except BadChoice as err:
            raise typer.BadParameter(str(err), param_hint="--pivot") from err
        if isinstance(shown, CrossTable):
            of_people = cross_as_text(name, shown, self.screen) if self.for_people else None
            self.text(CROSS_FORMATS[self.format.value](name, shown) if of_people is None else of_people)
        elif not self.for_people:
            self.text(FORMATS[self.format.value](name, shown))
        elif len(shown):
            first = self.first if self.choice.top is None else None
            self.text(as_text(name, shown, replace(self.screen, first=first, of_each=tuple(top_for_each))))


def _format_of(given: Format | None, output: Path | None) -> Format:
    """The format asked for, or that of the file's suffix."""
    suffix = "" if output is None else output.suffix.lower()
    return given or _BY_SUFFIX.get(suffix, Format.table)


def writes_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of output and rows to a command, which gets them as one argument `writing`."""

    def writing(
        where: RowConditions = None,
        sort: SortColumns = None,
        top: FirstRows = None,
        columns: ShownColumns = None,
        pivot: CrossColumns = None,
        output_format: OutputFormat = None,
        output: Output = None,
        everything: Everything = False,
    ) -> Writing:
        try:
            conditions = tuple(map(Condition.parse, where or ()))
        except BadChoice as err:
            raise typer.BadParameter(str(err), param_hint="--where") from err
        try:
            orders = tuple(map(SortBy.parse, sort or ()))
        except BadChoice as err:
            raise typer.BadParameter(str(err), param_hint="--sort") from err
        if columns is not None and pivot is not None:
            raise typer.BadParameter("names the columns by itself; leave out --columns", param_hint="--pivot")
        try:
            cross = None if pivot is None else Pivot.parse(pivot)
        except BadChoice as err:
            raise typer.BadParameter(str(err), param_hint="--pivot") from err
        names = tuple(dict.fromkeys(name.strip() for name in (columns or "").split(",") if name.strip()))
        if columns is not None and not names:
            raise typer.BadParameter("names no column", param_hint="--columns")
        choice = TableChoice(conditions, orders, top, names, cross)
        return Writing(_format_of(output_format, output), output, everything, choice)

    return takes(writing=writing)(command)


def writes_text(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of output to a command, which gets them as one argument `writing`."""

    def writing(output_format: OutputFormat = None, output: Output = None, everything: Everything = False) -> Writing:
        return Writing(_format_of(output_format, output), output, everything)

    return takes(writing=writing)(command)
