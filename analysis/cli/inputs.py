"""Find the files that a command reads, so that it never writes to one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from ...contract.recording import RECORDING_SUFFIX
from ..core.places.place import is_remote, path_named
from ..errors import AnalysisError
from ..hang.files import DUMPS
from ..reading.trace_files import is_side_file, trace_files
from ..recording.shared_files import file_of

if TYPE_CHECKING:
    PathOrUrl = Path
else:
    PathOrUrl = str  # typer makes a Path of whatever is called one, even of what a parser gives

_READ, _WRITTEN = ("runs", "against", "ceiling", "peak"), ("output", "plot", "figure")
_HERE = (*_WRITTEN, "cache", "out", "scenario", "state", "tensorboard")
"""Options that name a file or folder of this machine."""
_URL = re.compile("[A-Za-z][A-Za-z0-9+.:-]+:/")
_KEPT = (".cache", RECORDING_SUFFIX)
AGAINST = "--against"


class SparingInputs(TyperCommand):
    """A command that refuses to write to its inputs, before it reads anything."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with --against put before each path behind it: shells expand patterns to many paths."""
        return super().parse_args(ctx, _each_against(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises BadParameter if the output is an input."""
        for name, value in ctx.params.items():
            is_path = name in _HERE and isinstance(value, str | Path)
            if is_path and not is_remote(value) and _is_url(str(value)):
                raise typer.BadParameter("is a URL; name a path of this machine", param_hint=f"--{name}")
        given = [ctx.params.get(name) for name in _READ]
        paths = [path for value in given for path in (value if isinstance(value, list | tuple) else [value]) if path]
        for name in _WRITTEN:
            value = ctx.params.get(name)
            for output in value if isinstance(value, list | tuple) else [value]:
                if output is not None and (read := _same_file(path_named(output), list(map(path_named, paths)))):
                    message = f"{output}: is {read}, which is read; name another file"
                    raise typer.BadParameter(message, param_hint=f"--{name}")
        return super().invoke(ctx)


def _is_url(path: str) -> bool:
    """Whether a path is a URL, with one slash or two: it would become a folder with its secrets in the name."""
    return bool(_URL.match(path)) and not os.path.lexists(path.partition("/")[0])


def _each_against(args: list[str]) -> list[str]:
    """Turn `--against B1 B2` into `--against B1 --against B2`, up to the next option."""
    result: list[str] = []
    open_ = False
    for arg in args:
        if open_ and arg.startswith("-"):
            open_ = False
        if open_ and result[-1] != AGAINST:
            result.append(AGAINST)
        result.append(arg)
        open_ = open_ or arg == AGAINST or arg.startswith(f"{AGAINST}=")
    return result


def _same_file(output: Path, paths: list[Path]) -> Path | None:
    """The input file of these runs that is the output file, under whatever name; None if there is none."""
    if is_remote(output):
        return None
    try:
        status = output.stat()
    except OSError:  # there is none yet
        return None
    for path in paths:
        if is_remote(path):
            continue
        for file in _files_of(path):
            with suppress(OSError):
                if os.path.samestat(status, file_of(file).stat()):
                    return file_of(file)
    return None


def _files_of(path: Path) -> Iterator[Path]:
    """Yield the files that may be read of a run, or of a folder of runs."""
    if not path.is_dir():
        yield path
        yield from _beside(file_of(path).parent)
        return
    for folder in (path, *(inner for inner in path.iterdir() if inner.is_dir())):
        for files_in in (lambda paths: [one.path for one in trace_files(paths).traces], DUMPS.named):
            with suppress(AnalysisError):
                yield from files_in([folder])
        yield from _beside(folder)


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the side files and caches in a folder."""
    with suppress(OSError):
        yield from (file for file in folder.iterdir() if is_side_file(file.name) or file.suffix in _KEPT)
