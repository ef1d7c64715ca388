"""Rows of one step: in the tables of a whole run, and in those of a run of which only that step was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from commtrace.analysis.results.analysis import Analysis

OF_DEVICES = ("breakdown_steps", "idle_steps", "account_steps")
NUMBERS = ["call_id", "collective_id", "batch"]
"""Numbers of rows, which count from the first one shown."""
OF_WHOLE_RUN = ["excess_ns"]
"""By definition beside the best similar call of all that were read."""


def differences_of_step(whole: Analysis, part: Analysis, step: int) -> list[str]:
    """Name the columns that differ in rows of the step, and tables of another length."""
    return [*differences_on_devices(whole, part, step), *_of_calls(whole, part, step)]


def differences_on_devices(whole: Analysis, part: Analysis, step: int) -> list[str]:
    """The same of the tables that need no other rank but for how waiting is split."""
    names = OF_DEVICES if whole.run.details else OF_DEVICES[:1]
    return [found for name in names for found in _differences(name, *_rows(whole, part, name, step))]


def _of_calls(whole: Analysis, part: Analysis, step: int) -> Iterator[str]:
    for name in ("calls", "participation"):
        tables = [table.drop(columns=OF_WHOLE_RUN, errors="ignore") for table in _rows(whole, part, name, step)]
        keys = [key for key in ("rank", "device", "stream", "start_ns", "collective") if key in tables[0]]
        yield from _differences(name, *(table.sort_values(keys, kind="stable") for table in tables))
    own = [one.participation for one in (whole, part)]
    ids = [table["collective_id"][table["step"] == step] for table in own]
    pairs = zip((whole, part), ids, strict=True)
    yield from _differences(
        "collectives", *(one.collectives[one.collectives["collective_id"].isin(i)] for one, i in pairs)
    )


def _rows(whole: Analysis, part: Analysis, name: str, step: int) -> list[pd.DataFrame]:
    return [table[table["step"] == step] for table in (getattr(whole, name), getattr(part, name))]


def _differences(name: str, whole: pd.DataFrame, part: pd.DataFrame) -> list[str]:
    if len(whole) != len(part):
        return [f"{name}: {len(whole)} rows, {len(part)} of the step alone"]
    a, b = (table.drop(columns=NUMBERS, errors="ignore").reset_index(drop=True) for table in (whole, part))
    return [f"{name}.{column}" for column in a if not a[column].equals(b[column])]
