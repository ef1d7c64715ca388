"""What `layers` and `capacity` measured of one machine, as tables of pandas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.places.place import path_named
from ..core.tables.lab import CAPACITY, LAYERS, TIME_RATIOS
from .files import Layers, read_capacity, read_layers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MachineAnalysis:
    """The tables of a folder of `layers` or `capacity`. Columns: docs/tables.md.

    Each raises NothingMeasured where the folder has no file of its command, UnreadableFile and DamagedMeasurement.
    """

    folder: Path

    @cached_property
    def _layers(self) -> Layers:
        return read_layers(self.folder)

    @property
    def layers(self) -> pd.DataFrame:
        """Time, memory and power of every layer."""
        return LAYERS.described(LAYERS.frame(self._layers.layers.rows))

    @property
    def time_ratios(self) -> pd.DataFrame:
        """How much longer the passes of the second of two models take."""
        return TIME_RATIOS.described(TIME_RATIOS.frame(self._layers.ratios.rows))

    @property
    def capacity(self) -> pd.DataFrame:
        """How many layers devices can train."""
        return CAPACITY.described(CAPACITY.frame(read_capacity(self.folder).capacity.rows))


def analyse_machine(folder: str | PathLike[str]) -> MachineAnalysis:
    """The tables of a folder that `commtrace layers` or `capacity` wrote, each read when it is asked for."""
    return MachineAnalysis(path_named(str(folder)))
