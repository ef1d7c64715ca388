"""The tables of communication: every column with dtype, unit and meaning, declared once.

`docs/tables.md` is generated from here. The unit is the last word of a column's name: `_ns` nanoseconds (integer),
`_us` microseconds, `_bytes` bytes, `_elems` elements, `_gb_per_s` 1e9 bytes per second, `_frac` 0..1.
`Int64`, `boolean`, `string` and `Float64` columns hold NA where a value is not known.
"""

from __future__ import annotations

from ..schema import PlainTable as PlainTable
from ..schema import Row as Row
from ..schema import Schema as Schema
from ..schema import bare as bare
from ..schema import grouped as grouped
from ..schema import plain as plain
from ..schema import records as records
from .columns import (
    COLLECTIVE,
    CYCLE,
    DEVICE,
    DTYPE,
    GROUP,
    KIND,
    PARTIAL_MEMBER,
    PG_RANKS,
    RANK,
    REQUESTS,
    ROOT,
    SIZE,
    STEP,
    TOKENS,
    TURN,
)
from .comparison import CHANGED_KERNELS as CHANGED_KERNELS
from .comparison import CHANGED_OPERATORS as CHANGED_OPERATORS
from .comparison import CHANGED_REGIONS as CHANGED_REGIONS
from .comparison import COMPARISON as COMPARISON
from .device_time import STEP_TIMES as STEP_TIMES
from .events import ACTIVITIES as ACTIVITIES
from .events import COMM_ARGS as COMM_ARGS
from .events import CPU_OPERATORS as CPU_OPERATORS
from .events import LAUNCHES as LAUNCHES
from .events import MEMORY_EVENTS as MEMORY_EVENTS
from .sweeps import MEASURED as MEASURED
from .sweeps import MISTAKES as MISTAKES
from .sweeps import SCALING as SCALING
from .sweeps import SUBTRACTION as SUBTRACTION
from .sweeps import TIMINGS as TIMINGS
from .training import TRAINING as TRAINING
from .training import TRAINING_EPOCHS as TRAINING_EPOCHS

# --- what a reader gives -------------------------------------------------------------------------------------------

TRACES = Schema("traces", "trace file", {
    "rank": RANK,
    "cycle": CYCLE,
    "trace": ("string", "file name"),
    "world_size": ("Int64", "ranks in the job"),
    "rank_from": ("string", "where it was found: trace, communicator, side file, collectives, file name, or only file"),
    "host": ("string", "host name, NA if neither trace nor side file names it"),
    "host_from": ("string", "where the host was found: side file, trace or file name"),
    "window_end_ns": ("Int64", "when the profiler stopped, on that rank's clock; NA where the trace does not say"),
    "base_ns": ("Int64", "unix time from which the times in the file count"),
    "boot_id": ("string", "id of the machine, since host names may not be unique; NA without a side file"),
    "pid": ("Int64", "process id"),
    "backend": ("string", "backend of the default process group"),
    "device_name": ("string", "GPU, or NA"),
    "complete": ("boolean", "False if the capture ended early, or the file is damaged or contradictory; NA if unknown"),
    "incomplete_reason": ("string", "why it ended early, where the damage is, or what is contradicted"),
    "partial": ("boolean", "True if the file contradicts itself, or is damaged: only what comes before that was read"),
    "read_bytes": ("Int64", "bytes of the file, unpacked, each of which is part of an event or of the header"),
    "not_understood_bytes": ("Int64", "bytes repaired, and from the damage on; 0 for a sound file; NA if not known"),
    "verified_events": ("Int64", "events decoded a second time, with --verify; NA without it"),
    "versions": ("string", "torch, CUDA and NCCL versions, as far as the files say"),
    "has_starts": ("boolean", "False if the file says how long calls took, but not when they began"),
})  # fmt: skip

PROCESS_GROUPS = Schema("process_groups", "rank and process group it belongs to", {
    "rank": RANK,
    "process_group": ("string", "name"),
    "description": ("string", "description"),
    "backend": ("string", "backend"),
    "pg_ranks": PG_RANKS,
})  # fmt: skip

CLOCK_PROBES = Schema("clock_probes", "moment at which a rank's clock was compared with rank 0's", {
    "rank": RANK,
    "at": ("string", "start or end of the capture"),
    "unix_ns": ("int64", "when, on that rank's clock"),
    "offset_ns": ("int64", "how far its clock is ahead of rank 0's"),
    "uncertainty_ns": ("int64", "the offset is wrong by at most this much"),
})  # fmt: skip

ANNOTATIONS = Schema("annotations", "CPU annotation of a step, a collective or a batch, or c10d operator", {
    "rank": RANK,
    "cycle": CYCLE,
    "name": ("string", "ProfilerStep#N, nccl:<op>, gloo:<op>, c10d::<op>, enumerate(DataLoader)#...; with details any"),
    "thread": ("int64", "thread id"),
    "start_ns": ("int64", "start"),
    "dur_ns": ("int64", "duration"),
    "in_dims": ("object", "shapes of the inputs, nested lists, or None"),
    "in_types": ("object", "types of the inputs, list of names, or None"),
    "in_values": ("object", "values of the scalar inputs, list of strings, or None"),
})  # fmt: skip

CEILING = Schema("ceiling", "measurement of a ceiling", {
    "collective": COLLECTIVE,
    "group_size": ("int64", "ranks"),
    "size_bytes": ("int64", "size S as nccl-tests defines it"),
    "busbw_gb_per_s": ("Float64", "bus bandwidth"),
})  # fmt: skip

# --- what is measured ----------------------------------------------------------------------------------------------

STEP_MARKS = Schema("step_marks", "rank and step whose annotation says something", {
    "rank": RANK,
    "cycle": CYCLE,
    "step": ("int64", "its number"),
    "name": ("string", "name of the annotation"),
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "unseen_ns": ("Int64", "how long work launched in it was held up by work from before the trace; NA if it was not"),
})  # fmt: skip

PENDING = Schema("pending", "call that a CPU issued, but that the trace does not show running", {
    "rank": RANK,
    "cycle": CYCLE,
    "step": STEP,
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group"),
    "dtype": DTYPE,
    "size_bytes": SIZE,
    "seq": ("Int64", "sequence number within the process group"),
    "root": ROOT,
    "turn": TURN,
    "issue_ns": ("Int64", "when it was issued, on that rank's clock"),
})  # fmt: skip

MATCHES = Schema("matches", "call", {
    "call_id": ("int64", "call"),
    "collective_id": ("int64", "calls of one collective share it"),
    "matched_by": ("string", "comms_id, seq, step, order, time or none: the weakest rung among its calls"),
    "certain": ("boolean", "no other pairing fits as well; False if it is unmatched"),
    "note": ("string", "why it is unmatched, or not certain"),
    "found_collective": ("string", "which one it is, where only all ranks together show it"),
    "found_process_group": ("string", "name of its process group, where the call itself does not say"),
    "found_pg_ranks": ("string", "ranks of its process group, where the call itself does not say"),
    "found_group_size": ("Int64", "number of ranks in that group"),
})  # fmt: skip

# What metrics rest on; people get `PARTICIPATION`, which has more.
MEMBERS = Schema("members", "collective and rank", {
    "collective_id": ("int64", "collective"),
    "call_id": ("int64", "call"),
    "rank": RANK,
    "device": DEVICE,
    "start_ns": ("int64", "start on that rank's clock"),
    "dur_ns": ("int64", "duration"),
    "arrived_ns": ("int64", "start on the common clock of the linked ranks"),
    "wait_ns": ("Int64", "time before the last rank it needs arrived, within [0, dur_ns]"),
    "transfer_ns": ("Int64", "dur_ns - wait_ns; of a send on a CPU, until its receiver had the data"),
    "wait_low_ns": ("Int64", "how long it waited at least, for ranks that have a trace; wait_ns where that is known"),
    "batch": ("Int64", "the same for sends and receives of one kernel: the call_id of the first"),
    "waited_for": ("Int64", "rank that it waited for: the last of those it needs; NA if it waited for none"),
    "wait_clock_free_ns": ("Int64", "dur_ns - shortest duration in the collective: a check on wait_ns without clocks"),
    "excess_ns": (
        "Int64",
        "dur_ns - shortest similar call on this rank: waiting as one rank alone shows it; too low if it always waits",
    ),
    "late_ns": ("Int64", "how much later than the first rank this one arrived"),
    "exposed_wait_ns": ("Int64", "part of wait_ns in which this device did not compute"),
    "exposed_transfer_ns": ("Int64", "part of transfer_ns in which this device did not compute"),
    "exposed_wait_low_ns": ("Int64", "part of wait_low_ns in which this device did not compute"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

SUMMARY = Schema("summary", "fact about the run", {
    "item": ("string", "what"),
    "value": ("string", "in words"),
})  # fmt: skip
