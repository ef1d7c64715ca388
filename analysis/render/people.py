"""Tables for people: the columns that matter, in units that keep numbers short, as text or markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any, Union

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..core.escaping import printable
from ..core.schema import PlainTable, plain

if TYPE_CHECKING:
    import pandas as pd

Table = Union["pd.DataFrame", PlainTable]
"""What every renderer takes."""

# Columns shown, by table; what is left out here stands in CSV and JSON.
_SHOWN = {
    "breakdown": (
        "rank", "device", "window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_wait_ns",
        "exposed_transfer_ns", "exposed_unsplit_ns", "exposed_memory_ns", "idle_ns", "exposed_comm_frac",
        "hidden_comm_frac", "partial",
    ),
    "breakdown_steps": (
        "rank", "device", "step", "window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns",
        "exposed_wait_ns", "exposed_transfer_ns", "exposed_memory_ns", "idle_ns", "exposed_comm_frac", "partial",
    ),
    "calls": (
        "rank", "device", "stream", "step", "collective", "process_group", "group_size", "dtype", "size_bytes", "seq",
        "start_ns", "dur_ns", "metadata_from", "partial",
    ),
    "collectives": (
        "collective_id", "collective", "process_group", "ranks", "dtype", "size_bytes", "matched_by", "first_start_ns",
        "arrival_skew_ns", "last_rank", "transfer_ns", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_low_gb_per_s",
        "busbw_high_gb_per_s", "note", "partial",
    ),
    "participation": (
        "collective_id", "rank", "arrived_ns", "dur_ns", "wait_ns", "transfer_ns", "wait_clock_free_ns", "late_ns",
        "exposed_wait_ns", "exposed_transfer_ns", "partial",
    ),
    "bandwidth": (
        "process_group", "collective", "size_bytes", "count_elems", "dtype", "calls", "time_us_min", "time_us_median",
        "time_us_p95", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_low_gb_per_s", "busbw_high_gb_per_s",
        "busbw_from_dur_gb_per_s", "partial",
    ),
    "bandwidth_ceiling": (
        "process_group", "collective", "size_bytes", "dtype", "calls", "time_us_median", "busbw_gb_per_s",
        "ceiling_busbw_gb_per_s", "of_ceiling_frac", "ceiling_note", "partial",
    ),
    "ranks": (
        "rank", "host", "calls", "split_calls", "comm_call_ns", "wait_ns", "transfer_ns", "times_last",
        "caused_wait_ns", "caused_wait_frac", "late_median_ns", "late_max_ns", "because", "wire_gb_per_s", "partial",
    ),
    "lateness": (
        "collective_id", "rank", "late_ns", "caused_wait_ns", "new_ns", "because", "origin_rank", "origin_because",
        "kernel", "kernel_extra_ns", "operator", "partial",
    ),
    "clocks": (
        "rank", "host", "offset_ns", "drift_ppm", "uncertainty_ns", "probe_offset_ns", "probe_uncertainty_ns", "basis",
        "partial",
    ),
    "fits": (
        "process_group", "collective", "sizes", "calls", "latency_us", "algbw_gb_per_s", "busbw_gb_per_s", "error_frac",
        "partial",
    ),
    "verdicts": (
        "process_group", "collective", "dtype", "size_bytes", "calls", "exposed_ns", "exposed_wait_frac", "hidden_frac",
        "verdict", "because", "partial",
    ),
    "scaling": (
        "model", "parallel", "workers", "batch_size_per_worker", "status", "epoch_ns", "samples_per_s", "epoch_work",
        "speedup_fixed_work", "speedup_scaled_work", "strong_efficiency_frac", "weak_efficiency_frac",
        "speedup_same_batch", "note",
    ),
    "subtraction": (
        "model", "parallel", "workers", "batch_size_per_worker", "status", "epoch_ns", "subtracted_compute_ns",
        "subtracted_comm_ns", "not_compute_ns", "loader_ns", "compute_ns", "comm_ns", "exposed_comm_ns",
        "exposed_wait_ns", "exposed_transfer_ns", "difference_ns", "subtracted_busbw_gb_per_s", "busbw_gb_per_s",
        "note",
    ),
    "mistakes": (
        "model", "parallel", "workers", "batch_size_per_worker", "mistake", "reports", "subtracted_comm_ns",
        "subtracted_busbw_gb_per_s", "mistaken_busbw_gb_per_s", "mistaken_factor", "because", "note",
    ),
    "training": (
        "run", "parallel", "workers", "global_batch_size", "optimizer", "lr_scaling", "lr", "after_epochs",
        "train_loss", "train_accuracy_frac", "test_loss", "test_accuracy_frac", "test_loss_difference",
        "test_accuracy_difference_frac", "epoch_ns", "speedup_over_baseline", "note",
    ),
    "training_epochs": (
        "run", "after_epochs", "phase", "global_batch_size", "lr", "train_loss", "train_accuracy_frac", "test_loss",
        "test_accuracy_frac", "steps", "epoch_steps", "step_ns", "data_ns",
    ),
    "gpus": (
        "rank", "device", "device_name", "steps", "window_ns", "busy_ns", "utilisation_frac", "sm_efficiency_frac",
        "occupancy_frac", "note", "partial",
    ),
}  # fmt: skip
_DEVICE_TIME = (
    "rank", "device", "total_ns", "share_frac", "wait_share_frac", "transfer_share_frac", "hidden_share_frac", "calls",
    "split_calls", "mean_us", "min_us", "max_us", "occupancy_frac", "kind", "name", "operator", "partial",
)  # fmt: skip
_COMPARED = (
    "measure", "a_ns", "b_ns", "spread_a_ns", "spread_b_ns", "difference_ns", "a_bytes", "b_bytes", "difference_bytes",
    "change_frac", "change_low_frac", "change_high_frac", "p_value", "significant", "steps_a", "steps_b", "kind",
    "name", "operator", "note",
)  # fmt: skip
_SHOWN |= dict.fromkeys(("comparison", "changed_kernels", "changed_operators"), _COMPARED)
_SHOWN |= dict.fromkeys(("kernels", "kernels_devices", "operators", "operators_devices"), _DEVICE_TIME)
# Names of kernels spell out all their template arguments; for people so much of them tells them apart.
_LONGEST_NAME = 72

_POINTS_IN_TIME = ("start_ns", "first_start_ns", "last_start_ns", "last_end_ns", "issue_ns", "arrived_ns")
# A unit serves when the largest value is at least so many ns: below that the next smaller one needs no decimals.
_UNITS = (("s", 1e9, 1e11), ("ms", 1e6, 1e7), ("us", 1e3, 1e4), ("ns", 1.0, 0.0))
# Times of whole epochs: in seconds, as reports give them.
_IN_SECONDS = ("scaling", "subtraction", "mistakes", "training", "training_epochs")
_NOTHING = "-"
# Underscores mark up at the edge of a word only.
_MARKUP = re.compile(r"[\\|*`\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def as_text(name: str, table: Table, *, ascii_only: bool = False) -> str:
    """A table for a terminal, as wide as it needs to be: never cropped, words of a header above each other."""
    headers, rows, numeric = cells(name, table)
    grid = Grid(box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header, right in zip(headers, numeric, strict=True):
        stacked = Text(header.replace("_", "\n").replace(" ", "\n"))
        grid.add_column(stacked, justify="right" if right else "left", vertical="bottom", no_wrap=True)
    for row in rows:
        grid.add_row(*[Text(cell) for cell in row])
    needed = sum(max(map(cell_len, column)) + 3 for column in zip(headers, *rows, strict=True)) + 4
    console = Console(file=StringIO(), width=max(needed, 40), color_system=None, legacy_windows=False)
    console.print(grid)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    return "\n".join(lines).strip("\n") + "\n"


def as_markdown(name: str, table: Table) -> str:
    """A GitHub-flavoured table with the columns and units of the text form."""
    headers, rows, numeric = cells(name, table)
    lines = [
        "| " + " | ".join(escaped(h) for h in headers) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
        *("| " + " | ".join(escaped(c) for c in row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def escaped(cell: str) -> str:
    """Text that GitHub-flavoured markdown shows as it is: names of kernels hold stars, bars and brackets."""
    return _MARKUP.sub(r"\\\g<0>", cell).replace("&", "&amp;").replace("<", "&lt;")


def cells(name: str, table: Table) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headers, rows of text, and which columns are numbers."""
    values = plain(table)
    columns = [c for c in _SHOWN.get(name, tuple(values.columns)) if c in values.columns]
    if "partial" in columns and not any(values.columns["partial"]):  # as in nearly every run
        columns.remove("partial")
    unit = _time_unit([values.columns[c] for c in columns if c.endswith("_ns") and c not in _POINTS_IN_TIME])
    headers, texts = [], []
    for column in columns:
        shown = values.columns[column]
        whole = name in _IN_SECONDS and column.endswith("_ns")
        header, text = _seconds(column) if whole else _form(column, values, unit)
        if column in _POINTS_IN_TIME:
            first = min((v for v in shown if v is not None), default=0)
            shown = [None if v is None else v - first for v in shown]
        headers.append(header)
        texts.append([_NOTHING if v is None else printable(text(v)) for v in shown])
    return headers, [list(row) for row in zip(*texts, strict=True)], [values.is_number(c) for c in columns]


def _time_unit(durations: list[list[Any]]) -> tuple[str, float]:
    """One unit for all durations of a table, so that they can be compared."""
    largest = max((abs(v) for column in durations for v in column if v is not None), default=0)
    return next((name, ns) for name, ns, at_least in _UNITS if largest >= at_least)


_Form = tuple[str, Callable[[Any], str]]
"""The header of a column, and how its values are written."""


def _seconds(column: str) -> _Form:
    return f"{column.removesuffix('_ns')} (s)", lambda v: _significant(v / 1e9)


def _form(column: str, values: PlainTable, unit: tuple[str, float]) -> _Form:
    if column in _POINTS_IN_TIME:
        return f"{column.removesuffix('_ns')} (ms)", lambda v: f"{v / 1e6:.3f}"
    if column.endswith("_ns"):
        digits = 0 if unit[0] == "ns" else 1
        return f"{column.removesuffix('_ns')} ({unit[0]})", lambda v: f"{v / unit[1]:,.{digits}f}"
    if column.endswith("_gb_per_s"):
        return f"{column.removesuffix('_gb_per_s')} (GB/s)", _significant
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s')} (1/s)", lambda v: f"{v:,.1f}"
    if column.startswith("speedup_") or column.endswith("_factor"):
        return column, _significant
    if "_loss" in column:
        return column, lambda v: f"{v:.4f}"
    if column == "lr":
        return column, lambda v: f"{v:.4g}"
    if "accuracy" in column:  # as reports give it
        return f"{column.removesuffix('_frac')} (%)", lambda v: f"{100 * v:.2f}"
    if column.endswith("_frac"):
        return f"{column.removesuffix('_frac')} (%)", lambda v: f"{100 * v:.1f}"
    if column == "p_value":
        return column, lambda v: f"{v:.2g}"
    if column in ("name", "operator"):
        return column, _shortened
    if "_us" in column and values.is_number(column) and not values.is_integer(column):
        return f"{column.replace('_us', '')} (us)", lambda v: f"{v:,.1f}"
    if column.endswith(("_bytes", "_elems")) and values.is_integer(column):
        unit_name = column[-5:].strip("_")
        return f"{column.removesuffix('_bytes').removesuffix('_elems')} ({unit_name})", lambda v: f"{v:,}"
    return column, str


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def _significant(value: float) -> str:
    """Two decimals, more below 0.1, so that slow links keep two digits."""
    return f"{value:,.2f}" if abs(value) >= 0.095 else f"{value:.2g}"
