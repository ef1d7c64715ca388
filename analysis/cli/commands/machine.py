"""`commtrace table layers` and `table capacity`: what was measured of a machine, without training."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ...catalog import CATALOG
from ...core.places.place import path_named
from ...core.schema import PlainTable
from ...errors import NothingMeasured
from ..inputs import PathOrUrl
from ..output import Writing, print_message, writes_tables


class LayersBy(str, Enum):
    """What a row stands for."""

    layer = "layer"
    ratio = "ratio"


MeasuredFolder = Annotated[
    PathOrUrl, typer.Argument(metavar="DIR", parser=path_named, help="The folder that the command of this name wrote.")
]


@writes_tables
def layers_command(
    runs: MeasuredFolder,
    by: Annotated[
        LayersBy, typer.Option(help="One row per layer, or with `layers --against` per pass of both models.")
    ] = LayersBy.layer,
    *,
    writing: Writing,
) -> None:
    """Print time, memory and power of every layer.

    \b
    Examples:
      commtrace table layers traces/my-layers
      commtrace table layers --columns layer,power_w -f latex traces/my-layers
    """
    name = "layers" if by is LayersBy.layer else "time_ratios"
    writing.check(name)
    from ...lab.files import read_layers

    folder = Path(runs)
    found = read_layers(folder)
    table = found.layers if by is LayersBy.layer else found.ratios
    if not len(table):
        raise NothingMeasured(f"{folder}: {CATALOG[name].none_measured}")
    _print(name, table, found.incomplete, writing)


@writes_tables
def capacity_command(runs: MeasuredFolder, *, writing: Writing) -> None:
    """Print how many layers devices can train.

    \b
    Examples:
      commtrace table capacity traces/my-capacity
      commtrace table capacity --columns devices,step_ns traces/my-capacity
    """
    writing.check("capacity")
    from ...lab.files import read_capacity

    found = read_capacity(Path(runs))
    _print("capacity", found.capacity, found.incomplete, writing)


def _print(name: str, table: PlainTable, incomplete: str | None, writing: Writing) -> None:
    if incomplete is not None:
        print_message(f"not all was measured: {incomplete}", kind="note")
    writing.table(name, table)
