"""How much of the device's peak a step reached (model FLOPs utilisation, MFU), and where the rest of it went.

Source: Chowdhery et al., PaLM (2022), appendix B: MFU is the throughput observed over that at the peak of the device.
FLOPs here are those of the operators that ran, so what is computed again in the backward pass counts (there called
hardware FLOPs utilisation). Definitions: docs/metrics/compute.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.schema import Row, bare, combined, flags_of_texts, records, text_codes
from .categories import takes_float32_as_tf32
from .peaks import DevicePeaks, Peak
from .shapes import TF32, combinations_of, formula_of
from .without_flops import has_no_flops

NO_SHAPES = "no shapes were recorded; capture with record_shapes=True"
_GIVE_IT = "give it with --peak"
_MENTIONED = 0.01
_NO_CALL = -1
_COPIED = ("window_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memory_ns", "idle_ns")


def mfu_rows(keys: list[str], breakdown: pd.DataFrame, work: pd.DataFrame, peaks: DevicePeaks) -> Iterator[Row]:
    """Yield a row for each of the breakdown, by step or not, with what its FLOPs would take at the peak.

    `keys` are its own. `work` is from `compute_work`; `peaks` are those of each device.
    """
    of_device = _flop_by_device(work, keys)
    rows = records(breakdown)
    return (_row(row, of_device.get(tuple(row[key] for key in keys)), peaks, keys) for row in rows)


class _Computed:
    """FLOPs by dtype of a device, and the time of kernels with FLOPs and of those that may have some, in ns."""

    def __init__(self) -> None:
        self.flop: dict[str | None, int] = {}
        self.masked: dict[str | None, int] = {}
        """Of these, what causal masks leave out."""
        self.known_ns: dict[str | None, int] = {}
        self.unknown_ns = 0
        self.has_shapes = False
        self.reasons: dict[str, int] = {}
        self.bounded: dict[tuple[str, str], _Bounded] = {}
        """By operator and inputs."""


@dataclass
class _Bounded:
    """Kernels that may multiply, the FLOPs that they have at most, and their time in ns."""

    dtype: str | None
    flop: int = 0
    dur_ns: int = 0

    def spared_ns(self, peak: Peak) -> float:
        """How much less than their time they would take at the peak, in ns. 1 TFLOP/s is 1e3 per ns."""
        best = peak.of(self.dtype)
        return max(0.0, self.dur_ns - self.flop / best / 1e3) if best else 0.0


def _flop_by_device(work: pd.DataFrame, keys: list[str]) -> dict[tuple[object, ...], _Computed]:
    """What was computed, by these keys; a call counts in the step of its first kernel."""
    by_device: dict[tuple[object, ...], _Computed] = {}
    work = work.dropna(subset=keys)
    if not len(work):
        return by_device
    number, pairs = combinations_of(work, ["operator", "inputs"])
    for row in _alike(work.assign(pair=number), keys):
        operator, inputs = pairs[row["pair"]].values()
        formula = formula_of(operator, inputs) if operator is not None and inputs is not None else None
        computed = by_device.setdefault(tuple(row[key] for key in keys), _Computed())
        computed.has_shapes |= formula is not None
        dtype = None if formula is None else TF32 if row["tf32"] and formula.dtype == "float32" else formula.dtype
        if formula is not None and formula.flop is not None:
            computed.flop[dtype] = computed.flop.get(dtype, 0) + formula.flop * row["calls"]
            computed.known_ns[dtype] = computed.known_ns.get(dtype, 0) + row["dur_ns"]
            computed.masked[dtype] = computed.masked.get(dtype, 0) + formula.masked_flop * row["calls"]
        elif row["unknown_ns"]:
            computed.unknown_ns += row["unknown_ns"]
            why = formula.reason if formula is not None else "no operator with shapes launched them"
            computed.reasons[why] = computed.reasons.get(why, 0) + row["unknown_ns"]
            if formula is not None and formula.most_flop is not None:
                bounded = computed.bounded.setdefault((operator, inputs), _Bounded(dtype))
                bounded.flop += formula.most_flop * row["calls"]
                bounded.dur_ns += row["unknown_ns"]
    return by_device


def _alike(work: pd.DataFrame, keys: list[str]) -> list[Row]:
    """A row per keys, `pair` of an operator and its inputs, whether its calls ran as TF32 and have `unknown_ns`.

    It has the number of these `calls`, their `dur_ns`, and `unknown_ns` of kernels that may have FLOPs.
    """
    number, of_kernel = combinations_of(work, ["operator", "kernel"])
    has_none = np.array([has_no_flops(row["operator"], row["kernel"]) for row in of_kernel], dtype=bool)[number]
    dur_ns, call = bare(work["dur_ns"]), work["call"].to_numpy(dtype=np.int64, na_value=_NO_CALL)
    # What no operator with shapes launched stands for itself.
    call = np.where(call == _NO_CALL, call.max() + 1 + np.arange(len(call)), call)
    codes = {
        key: text_codes(work[key])[0] if key == "device" else pd.factorize(work[key])[0]
        for key in {"rank", "device", *keys}
    }
    of_call, first = combined([codes["rank"], codes["device"], call])
    took_ns, unknown_ns = (_sums(ns, of_call, len(first)) for ns in (dur_ns, np.where(has_none, 0, dur_ns)))
    tf32 = np.zeros(len(first), dtype=bool)
    tf32[of_call[flags_of_texts(work["kernel"], takes_float32_as_tf32)]] = True
    same = [bare(work["pair"]), *(codes[key] for key in keys)]
    alike, kinds = combined([*(each[first] for each in same), tf32.astype(int), (unknown_ns != 0).astype(int)])
    return records(
        work[[*keys, "pair"]]
        .iloc[first[kinds]]
        .assign(
            tf32=tf32[kinds],
            calls=np.bincount(alike),
            dur_ns=_sums(took_ns, alike, len(kinds)),
            unknown_ns=_sums(unknown_ns, alike, len(kinds)),
        )
    )


def _sums(values: Ints, group: Ints, groups: int) -> Ints:
    """The sum of each group's values, of shape (groups,)."""
    found = np.zeros(groups, dtype=np.int64)
    np.add.at(found, group, values)
    return found


def _row(row: Row, computed: _Computed | None, peaks: DevicePeaks, keys: list[str]) -> Row:
    has_split = row["exposed_wait_ns"] is not None
    result: Row = {key: row[key] for key in (*keys, *_COPIED)}
    result["exposed_unsplit_ns"] = row["exposed_unsplit_ns"] if has_split else row["exposed_comm_ns"]
    result["below_peak_ns"] = row["compute_ns"]
    if computed is None or not computed.has_shapes:
        return result | {"note": NO_SHAPES}
    multiplying_ns = sum(computed.known_ns.values()) + computed.unknown_ns
    unknown_frac = computed.unknown_ns / multiplying_ns if multiplying_ns else None
    result |= {"tflop": sum(computed.flop.values()) / 1e12 or None, "without_flop_frac": unknown_frac}
    notes = []
    if unknown_frac is not None and unknown_frac >= _MENTIONED:
        why = max(computed.reasons, key=lambda reason: computed.reasons[reason])
        notes.append(f"FLOPs of {unknown_frac:.0%} of the time of kernels that multiply, or may, are not known: {why}")
    peak = peaks.get((row["rank"], row["device"]))
    unlisted = [dtype for dtype in computed.flop if peak is None or peak.of(dtype) is None]
    if unlisted:
        of_dtype = f" for {' and '.join(dtype or 'an unknown dtype' for dtype in unlisted)}" if peak is not None else ""
        notes.append(f"the peak of this device{of_dtype} is not listed; {_GIVE_IT}")
    at_peak_ns = _at_peak_ns(computed.flop, peak)
    if peak is None or len(unlisted) == len(computed.flop):
        pass
    elif at_peak_ns > row["compute_ns"]:
        known = "listed for its device" if not peak.given else peak.origin(computed.flop)
        notes.append(f"it computed faster than the peak that is {known}: that peak is wrong for this device")
    else:
        masked_ns = _at_peak_ns(computed.masked, peak)
        spared_ns = sum(bounded.spared_ns(peak) for bounded in computed.bounded.values())
        without_ns = computed.unknown_ns + sum(computed.known_ns[dtype] for dtype in unlisted)
        most_ns = min(at_peak_ns + without_ns - round(spared_ns), row["compute_ns"])
        result |= {
            "peak_from": peak.origin(dtype for dtype in computed.flop if dtype not in unlisted),
            "at_peak_ns": at_peak_ns,
            "below_peak_ns": row["compute_ns"] - at_peak_ns,
            "mfu_frac": at_peak_ns / row["window_ns"] if row["window_ns"] else None,
            "mfu_causal_frac": (at_peak_ns - masked_ns) / row["window_ns"] if row["window_ns"] else None,
            "mfu_most_frac": most_ns / row["window_ns"] if row["window_ns"] else None,
            "compute_frac": at_peak_ns / row["compute_ns"] if row["compute_ns"] else None,
        }
    return result | {"note": "; ".join(notes) or None}


def _at_peak_ns(flop: Mapping[str | None, int], peak: Peak | None) -> int:
    """What these FLOPs, by dtype, would take at the peak, in ns, of dtypes that have one. 1 TFLOP/s is 1e3 per ns."""
    best = {} if peak is None else {dtype: peak.of(dtype) for dtype in flop}
    return round(sum(flop[dtype] / rate / 1e3 for dtype, rate in best.items() if rate))
