"""Time and size of timelines: slices a second and bytes a slice, beside Perfetto's own message classes.

    python benchmarks/timeline.py [RANKS ...]

For each number of ranks, tables are made up: 20,000 kernels on each rank in 10 steps, one collective after every tenth,
for which one rank comes late. Both ways of writing alternate; that of the message classes writes 20,000 slices.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commtrace.analysis.core.tables.communication import ACTIVITIES, MEMBERS
from commtrace.analysis.tables.calls import CALLS
from commtrace.analysis.tables.clocks import CLOCKS
from commtrace.analysis.tables.collectives import COLLECTIVES
from commtrace.analysis.tables.lateness import LATENESS
from commtrace.analysis.timeline.drawing import timeline_of
from commtrace.analysis.timeline.tables import Tables

KERNELS, STEPS, EVERY, KERNEL_NS, WAIT_NS = 20_000, 10, 10, 8_000, 3_000
ROUNDS = 5


def main(ranks: list[int]) -> None:
    print("ranks     slices   slices/s  bytes/slice  us/slice  x message classes  peak GB")
    for count in ranks:
        tables = made_up(count)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            found = timeline_of(tables)
            ours.append((time.perf_counter() - begun) / found.slices)
            theirs.append(by_message_classes(KERNELS))
        size = found.sums.size_bytes / found.slices
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{count:5} {found.slices:10,} {1 / min(ours):10,.0f} {size:12.1f} {min(ours) * 1e6:9.2f}"
            f" {min(theirs) / min(ours):18.1f} {peak_gb:8.1f}"
        )


def by_message_classes(slices: int) -> float:
    """Seconds for each slice."""
    begun = time.perf_counter()
    trace = Trace()
    for number in range(slices):
        for kind, at in ((TrackEvent.TYPE_SLICE_BEGIN, 2 * number), (TrackEvent.TYPE_SLICE_END, 2 * number + 1)):
            packet = trace.packet.add()
            packet.timestamp, packet.trusted_packet_sequence_id = at, 1
            packet.track_event.type, packet.track_event.track_uuid = kind, 1
            if kind == TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name_iid = number % 50 + 1
    trace.SerializeToString()
    return (time.perf_counter() - begun) / slices


def made_up(ranks: int) -> Tables:
    """The tables of a run with this many ranks."""
    number = np.arange(KERNELS)
    begun = 1_700_000_000_000_000_000 + number * (KERNEL_NS + 500)
    names = np.array([f"void at::native::kernel_{i}<float, {i}>(int, float*)" for i in range(50)], dtype=object)
    one = pd.DataFrame({
        "kind": "compute", "stream": 7, "name": names[number % 50], "start_ns": begun, "dur_ns": KERNEL_NS,
        "step": number * STEPS // KERNELS, "correlation": number,
    })  # fmt: skip
    calls = number[::EVERY]
    comm = pd.DataFrame({
        "kind": "comm", "stream": 20, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "start_ns": begun[calls],
        "dur_ns": 5 * KERNEL_NS, "step": calls * STEPS // KERNELS, "correlation": calls + KERNELS,
    })  # fmt: skip
    both = pd.concat([one, comm], ignore_index=True).assign(cycle=0)
    activities = pd.concat([both.assign(rank=rank, device=str(rank % 8)) for rank in range(ranks)], ignore_index=True)
    members = made_up_members(ranks, begun[calls])
    group = {"process_group": "0", "pg_ranks": " ".join(map(str, range(ranks))), "dtype": "float32"}
    collectives = pd.DataFrame({
        "collective_id": range(len(calls)), "collective": "all_reduce", "seq": range(len(calls)), "matched_by": "seq",
        "last_start_ns": begun[calls] + WAIT_NS, "last_end_ns": begun[calls] + 5 * KERNEL_NS,
        "busbw_gb_per_s": 100.0, **group,
    })  # fmt: skip
    late = pd.DataFrame({
        "collective_id": range(len(calls)), "rank": np.arange(len(calls)) % ranks, "late_ns": WAIT_NS,
        "because": "compute", "kernel": names[0],
    })  # fmt: skip
    clocks = pd.DataFrame({
        "rank": range(ranks), "host": "node0", "linked": 0, "offset_ns": 0, "drift_ppm": 0.0, "origin_ns": 0,
        "uncertainty_ns": 2_000, "basis": "one host",
    })  # fmt: skip
    return Tables(
        "made-up",
        filled(ACTIVITIES, activities),
        filled(
            CALLS, members.assign(collective="all_reduce", size_bytes=1 << 20, seq=members["collective_id"], **group)
        ),
        filled(MEMBERS, members),
        filled(COLLECTIVES, collectives),
        filled(LATENESS, late),
        filled(CLOCKS, clocks),
    )


def made_up_members(ranks: int, begun_ns: np.ndarray) -> pd.DataFrame:
    """Every rank's call in every collective; the late rank moves from one to the next."""
    collective, rank = (each.reshape(-1) for each in np.meshgrid(range(len(begun_ns)), range(ranks), indexing="ij"))
    late = collective % ranks == rank
    start_ns = begun_ns[collective] + np.where(late, WAIT_NS, 0)
    dur_ns = 5 * KERNEL_NS - np.where(late, WAIT_NS, 0)
    wait_ns = np.where(late, 0, WAIT_NS)
    waited_for = pd.Series(collective % ranks, dtype="Int64").mask(late)
    return pd.DataFrame({
        "collective_id": collective, "call_id": np.arange(len(rank)), "rank": rank, "start_ns": start_ns,
        "dur_ns": dur_ns, "arrived_ns": start_ns, "wait_ns": wait_ns, "transfer_ns": dur_ns - wait_ns,
        "waited_for": waited_for, "cycle": 0, "device": (rank % 8).astype(str), "stream": 20,
        "step": collective * STEPS // len(begun_ns), "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    })  # fmt: skip


def filled(schema, table: pd.DataFrame) -> pd.DataFrame:
    """The table with what it lacks: NA, or 0 where there is no NA."""
    zero = {"int64": 0, "float64": 0.0}
    missing = {c: zero.get(dtype) for c, (dtype, _) in schema.columns.items() if c not in table}
    return schema.conform(table.assign(**missing)[[*schema.columns]])


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [8, 64])
