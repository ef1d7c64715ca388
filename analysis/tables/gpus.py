"""How busy a GPU is, as TensorBoard's profiler plugin measures it: utilisation, SM efficiency, achieved occupancy.

Source of all definitions: torch-tb-profiler 0.4.3, profiler/gpu_metrics_parser.py and, for what `all steps` are,
profiler/event_parser.py. Where this deviates from the plugin it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import markers
from ..core.declaring import TableEntry, Topic, Worst, each_rank
from ..core.frames import np
from ..core.intervals import Times, clip, spans, total
from ..core.kinds import is_copy
from ..core.schema import Row, Schema
from ..core.tables.columns import DEVICE, PARTIAL, RANK

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

GPUS = Schema("gpus", "rank and GPU", {
    "rank": RANK,
    "device": DEVICE,
    "device_name": ("string", "GPU, or NA"),
    "steps": ("int64", "steps in window_ns; 0 if none are marked"),
    "window_ns": ("int64", "all steps together, as TensorBoard's plugin bounds them; over several cycles, their sum"),
    "busy_ns": ("int64", "part of it in which at least one kernel ran; copies and fills do not count"),
    "utilisation_frac": ("Float64", "busy_ns / window_ns"),
    "sm_efficiency_frac": ("Float64", "mean over window_ns of min(blocks per SM of all running kernels, 1)"),
    "occupancy_frac": ("Float64", "mean estimated achieved occupancy of the kernels, weighted by duration"),
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
})  # fmt: skip

# A last step that launched less than this part of what the one before it launched counts as cut off.
_WHOLE_STEP = 0.8


class _AllSteps(NamedTuple):
    """The span of all steps together, [start_ns, end_ns)."""

    start_ns: int
    end_ns: int
    steps: int


class _Busy(NamedTuple):
    """Sums over the kernels of a device in the steps of one cycle; None where no kernel has the value."""

    steps: int
    window_ns: int
    busy_ns: int
    efficient_ns: float | None
    occupied_ns: float | None
    occupancy_known_ns: int


@TableEntry(
    GPUS,
    Topic.time,
    "GPU utilisation and occupancy, as TensorBoard defines them.",
    "kernels.md#gpus",
    command="table gpus",
    after="annotation_times_devices",
    shown=(
        "rank", "device", "device_name", "steps", "window_ns", "busy_ns", "utilisation_frac", "sm_efficiency_frac",
        "occupancy_frac", "note", "partial",
    ),
    none_measured="no GPU ran a kernel; capture with ProfilerActivity.CUDA, or use `table kernels` for a CPU run",
    narrow=(
        "rank", "device", "utilisation_frac", "sm_efficiency_frac", "occupancy_frac", "busy_ns", "window_ns",
        "steps", "device_name", "note",
    ),
    worst=Worst("utilisation_frac", smallest=True),
)  # fmt: skip
@each_rank
def gpus(
    activities: pd.DataFrame,
    annotations: pd.DataFrame,
    device_names: Mapping[tuple[int, str], str | None],
    has_starts: bool,
) -> pd.DataFrame:
    """One row per rank and GPU: utilisation, SM efficiency and occupancy, as TensorBoard's plugin measures them.

    They are over all cycles of a GPU that ran a kernel.
    """
    if not has_starts:
        return GPUS.empty()
    on_gpu = activities[activities["device"] != "cpu"]
    busy_of: dict[tuple[int, str], list[_Busy]] = {}
    for (rank, cycle), of_rank in on_gpu.groupby(["rank", "cycle"], sort=True):
        here = annotations[(annotations["rank"] == rank) & (annotations["cycle"] == cycle)]
        steps = _all_steps(of_rank, here)
        for device, on_device in of_rank.groupby("device", sort=True):
            busy = _busy(on_device, steps)
            if busy is not None:
                busy_of.setdefault((int(str(rank)), str(device)), []).append(busy)
    return GPUS.frame(
        _row(*key, cycles) | {"device_name": device_names.get(key)} for key, cycles in sorted(busy_of.items())
    )


def _all_steps(activities: pd.DataFrame, annotations: pd.DataFrame) -> _AllSteps | None:
    """From the first step's start, or the end of earlier device work, to the last step's end on the GPU.

    The last step does not count if it seems cut off. None without steps. This is how the plugin was meant to work; but
    it does not know the category that launches have had since torch 1.13, so it ends the steps of such traces on the
    host.
    """
    steps = annotations[annotations["name"].str.startswith(markers.PROFILER_STEP).fillna(False)].sort_values("start_ns")
    if not len(steps):
        return None
    starts = steps["start_ns"].tolist()
    host_ends = (steps["start_ns"] + steps["dur_ns"]).tolist()
    ends_ns = activities["start_ns"] + activities["dur_ns"]
    by_step = activities.assign(end_ns=ends_ns).groupby(activities["step"])
    numbers = steps["name"].str.removeprefix(markers.PROFILER_STEP).astype("int64")
    launched = by_step.size().reindex(numbers, fill_value=0).tolist()
    first = by_step["start_ns"].min().reindex(numbers).tolist()
    last = by_step["end_ns"].max().reindex(numbers).tolist()
    begin: int = starts[0]
    if launched[0]:
        before = ends_ns[activities["step"].isna() & (ends_ns < first[0])]
        begin = max([begin, *before.tolist()])
    ends, reached = [], begin
    for start, host_end, count, device_end in zip(starts, host_ends, launched, last, strict=True):
        reached = max(reached, start, host_end, int(device_end) if count else start)
        ends.append(reached)
    kept = _whole_steps(launched)
    return _AllSteps(begin, int(ends[kept - 1]), kept)


def _whole_steps(launched: list[int]) -> int:
    """Number of steps that count, from the number of activities that each launched."""
    busy = [i for i, count in enumerate(launched) if count]
    if not busy or len(launched) == 1:
        return len(launched)
    last = busy[-1]
    return last if last > 0 and launched[last - 1] * _WHOLE_STEP > launched[last] else last + 1


def _busy(on_device: pd.DataFrame, steps: _AllSteps | None) -> _Busy | None:
    """Sums over a device's kernels within the steps; None if it ran none."""
    kernels = on_device[~on_device["name"].map(is_copy).astype(bool)]
    if not len(kernels):
        return None
    if steps is None:
        ends_ns = on_device["start_ns"] + on_device["dur_ns"]
        steps = _AllSteps(int(on_device["start_ns"].min()), int(ends_ns.max()), 0)
    starts = kernels["start_ns"].to_numpy()
    ends = starts + kernels["dur_ns"].to_numpy()
    blocks = kernels["blocks_per_sm"].to_numpy(dtype="float64", na_value=np.nan)
    occupancy = kernels["occupancy_frac"].to_numpy(dtype="float64", na_value=np.nan)
    inside = np.maximum(np.minimum(ends, steps.end_ns) - np.maximum(starts, steps.start_ns), 0)
    known = ~np.isnan(occupancy) & (inside > 0)
    return _Busy(
        steps=steps.steps,
        window_ns=steps.end_ns - steps.start_ns,
        busy_ns=total(clip(spans(starts, ends), steps.start_ns, steps.end_ns)),
        efficient_ns=_efficient_ns(starts, ends, blocks, steps),
        occupied_ns=float((occupancy[known] * inside[known]).sum()) if known.any() else None,
        occupancy_known_ns=int(inside[known].sum()),
    )


def _efficient_ns(starts: Times, ends: Times, blocks: NDArray[np.float64], steps: _AllSteps) -> float | None:
    """Time within the steps, weighted by the blocks per SM of all kernels running at that moment, at most 1."""
    known = ~np.isnan(blocks)
    if not known.any():
        return None
    times = np.concatenate((starts[known], ends[known]))
    change = np.concatenate((blocks[known], -blocks[known]))
    order = np.argsort(times, kind="stable")
    running = np.minimum(np.cumsum(change[order]), 1.0)[:-1]
    edges = np.clip(times[order], steps.start_ns, steps.end_ns)
    return float((np.maximum(running, 0.0) * np.diff(edges)).sum())


def _row(rank: int, device: str, cycles: list[_Busy]) -> Row:
    window_ns = sum(c.window_ns for c in cycles)
    efficient = [c.efficient_ns for c in cycles if c.efficient_ns is not None]
    occupied = [c.occupied_ns for c in cycles if c.occupied_ns is not None]
    busy_ns = sum(c.busy_ns for c in cycles)
    row: dict[str, Any] = {
        "rank": rank,
        "device": device,
        "steps": sum(c.steps for c in cycles),
        "window_ns": window_ns,
        "busy_ns": busy_ns,
        "utilisation_frac": busy_ns / window_ns if window_ns else None,
        "sm_efficiency_frac": sum(efficient) / window_ns if efficient and window_ns else None,
        "occupancy_frac": sum(occupied) / sum(c.occupancy_known_ns for c in cycles) if occupied else None,
    }
    reasons = [
        *(["no step is marked: from the first to the last activity"] if not row["steps"] else []),
        *(["the traces do not show the kernels' blocks per SM"] if not efficient else []),
        *(["the traces do not show the kernels' occupancy"] if not occupied else []),
    ]
    return row | {"note": "; ".join(reasons) or None}
