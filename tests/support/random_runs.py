"""Random runs of which everything is known: who arrived when, how long moving took, how wrong every clock is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analysis.tables.calls import CALLS

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
US = 1_000


@dataclass(frozen=True)
class Shape:
    """What a random run is like."""

    ranks: int = 8
    steps: int = 5
    collectives_a_step: int = 8
    subgroups: bool = True
    point_to_point: bool = True
    ids: str = "none"  # none, seq, comms_id
    clock_error_ns: int = 20_000_000
    drift_ppm: float = 0.0
    shifted_calls: int = 3
    missing: float = 0.002
    end_jitter_ns: int = 40_000
    mean_compute_ns: int = 800_000


@dataclass(frozen=True)
class Run:
    """The calls as traces would show them, and by `call_id` what is true; `offset_ns` and `drift` per rank."""

    calls: pd.DataFrame
    truth: pd.DataFrame
    offset_ns: dict[int, int]
    drift: dict[int, float]


def random_run(seed: int, shape: Shape) -> Run:
    rng = np.random.default_rng(seed)
    events = _events(rng, shape)
    offset = {r: int(rng.integers(-shape.clock_error_ns, shape.clock_error_ns + 1)) for r in range(shape.ranks)}
    drift = {r: float(rng.uniform(-shape.drift_ppm, shape.drift_ppm)) * 1e-6 for r in range(shape.ranks)}
    events = _windowed(rng, shape, events)
    events = events.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)
    rate = events["rank"].map(drift)
    shown = (events["start_ns"] * (1 + rate)).round().astype("int64") + events["rank"].map(offset)
    shown_end = (events["end_ns"] * (1 + rate)).round().astype("int64") + events["rank"].map(offset)
    rows = events.assign(call_id=range(len(events)), start_ns=shown, issue_ns=shown - 50 * US, dur_ns=shown_end - shown)
    unknown: Any = pd.NA
    same: dict[str, Any] = {"cycle": 0, "device": "0", "stream": 7, "name": "ncclDevKernel", "metadata_from": "kernel"}
    columns = rows.reindex(columns=list(CALLS.columns))
    calls = CALLS.conform(columns.assign(**same, in_elems=unknown, out_elems=unknown))
    truth = rows[["call_id", "rank", "true_id", "wait_ns", "transfer_ns", "collective"]]
    return Run(calls, truth, offset, drift)


def _events(rng: np.random.Generator, shape: Shape) -> pd.DataFrame:
    """All calls of all ranks in true time."""
    layouts = _layouts(shape)
    pattern = [
        (rng.integers(len(layouts)), rng.choice(KINDS), int(rng.integers(1, 64)) * 65_536)
        for _ in range(shape.collectives_a_step)
    ]
    now = np.zeros(shape.ranks, dtype=np.int64) + 1_000_000_000
    sequence: dict[tuple[str, int], int] = {}
    rows: list[dict[str, object]] = []
    for step in range(shape.steps):
        now += rng.exponential(shape.mean_compute_ns, shape.ranks).astype(np.int64)
        for layout, kind, size in pattern:
            for name, members in layouts[layout]:
                count = sequence[name, members[0]] = sequence.get((name, members[0]), -1) + 1
                arrived = now[members] + rng.exponential(shape.mean_compute_ns / 4, len(members)).astype(np.int64)
                moved = 12 * US + size // 100 + int(rng.integers(0, 20 * US))
                end = arrived.max() + moved + rng.integers(0, shape.end_jitter_ns + 1, len(members))
                rows += [
                    _row(shape, step, name, members, kind, size, count, rank, start, stop, arrived.max())
                    for rank, start, stop in zip(members, arrived, end, strict=True)
                ]
                now[members] = end
        if shape.point_to_point and shape.ranks > 1:
            rows += _passed_on(rng, shape, step, now)
    return pd.DataFrame(rows)


def _layouts(shape: Shape) -> list[list[tuple[str, list[int]]]]:
    """The world; and, when there are enough ranks, rows and columns of a mesh, whose groups share a name."""
    world = [[("0", list(range(shape.ranks)))]]
    if not shape.subgroups or shape.ranks < 4 or shape.ranks % 2:
        return world
    half = shape.ranks // 2
    rows = [("tp", [2 * i, 2 * i + 1]) for i in range(half)]
    columns = [("dp", list(range(first, shape.ranks, 2))) for first in range(2)]
    return [*world, rows, columns]


def _row(
    shape: Shape, step: int, name: str, members: list[int], kind: str, size: int, count: int,
    rank: int, start: int, end: int, last: int,
) -> dict[str, object]:  # fmt: skip
    wait = min(max(int(last) - int(start), 0), int(end) - int(start))
    return {
        "rank": rank, "step": step, "process_group": name, "pg_ranks": " ".join(map(str, members)),
        "group_size": len(members), "collective": kind, "dtype": "float32", "size_bytes": size,
        "seq": count if shape.ids == "seq" else None,
        "comms_id": f"{name}-{members[0]}-{count}" if shape.ids == "comms_id" else None,
        "root": None, "start_ns": int(start), "end_ns": int(end), "true_id": f"{name}-{members[0]}-{count}",
        "wait_ns": wait, "transfer_ns": int(end) - int(start) - wait,
    }  # fmt: skip


def _passed_on(rng: np.random.Generator, shape: Shape, step: int, now: np.ndarray) -> list[dict[str, object]]:
    """Every rank sends to the next, as pipeline stages do."""
    rows = []
    members = list(range(shape.ranks))
    for source in range(shape.ranks - 1):
        sent, awaited = now[source] + 5 * US, now[source + 1] + 5 * US
        end = max(sent, awaited) + 30 * US + int(rng.integers(0, 10 * US))
        for rank, peer, kind, start in ((source, source + 1, "send", sent), (source + 1, source, "recv", awaited)):
            row = _row(shape, step, "0", members, kind, 4096, -1, rank, start, end, max(sent, awaited))
            rows.append(row | {"root": peer, "seq": None, "comms_id": None, "true_id": f"p2p-{step}-{source}"})
        now[source], now[source + 1] = max(now[source], end), end
    return rows


def _windowed(rng: np.random.Generator, shape: Shape, events: pd.DataFrame) -> pd.DataFrame:
    """What every rank's trace shows: windows begin and end elsewhere, and some calls are lost."""
    kept = []
    for _, own in events.groupby("rank"):
        ordered = own.sort_values("start_ns")
        first = int(rng.integers(0, shape.shifted_calls + 1))
        last = len(ordered) - int(rng.integers(0, shape.shifted_calls + 1))
        ordered = ordered.iloc[first:last]
        kept.append(ordered[rng.random(len(ordered)) >= shape.missing])
    return pd.concat(kept)
