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
    PARTIAL,
    PARTIAL_MEMBER,
    PARTIAL_RUN,
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
from .lateness import LATENESS as LATENESS
from .lateness import REMEDIES as REMEDIES
from .lateness import VERDICTS as VERDICTS
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

_COUNTS = {
    "n_compute": ("int64", "compute activities"),
    "n_comm": ("int64", "communication activities"),
    "n_memory": ("int64", "copies and fills"),
}
_BREAKDOWN = {
    "window_ns": ("int64", "length of the window: of a step, of all steps that count, or first start to last end"),
    "compute_ns": ("int64", "time with at least one compute kernel running"),
    "comm_ns": ("int64", "time with at least one communication kernel running"),
    "overlap_ns": ("int64", "time with both: communication that is hidden"),
    "exposed_comm_ns": ("int64", "comm_ns - overlap_ns"),
    "exposed_wait_ns": ("Int64", "part of exposed_comm_ns spent waiting for others; NA if none of it could be split"),
    "exposed_transfer_ns": ("Int64", "part of exposed_comm_ns in which data moved; NA if none of it could be split"),
    "exposed_unsplit_ns": ("int64", "part of exposed_comm_ns that is neither: calls not split, sends not yet checked"),
    "exposed_memory_ns": ("int64", "time with only copies and fills running"),
    "idle_ns": ("int64", "time with nothing running"),
    "exposed_comm_frac": ("Float64", "exposed_comm_ns / window_ns"),
    "hidden_comm_frac": ("Float64", "overlap_ns / comm_ns, NA without communication"),
    "partial": PARTIAL,
}  # fmt: skip

BREAKDOWN = Schema("breakdown", "rank and device", {
    "rank": RANK,
    "device": DEVICE,
    "cycles": ("int64", "profiling cycles that were recorded"),
    "steps": ("Int64", "steps summed here, those that count; NA where it is all that was recorded"),
    **_COUNTS,
    "n_no_step": ("int64", "activities launched outside every step, mostly before the profiler started"),
    **_BREAKDOWN,
})  # fmt: skip

BREAKDOWN_STEPS = Schema("breakdown_steps", "rank, device and step", {
    "rank": RANK,
    "device": DEVICE,
    "step": ("int64", "N of ProfilerStep#N"),
    **_COUNTS,
    **_BREAKDOWN,
})  # fmt: skip

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

STEPS = Schema("steps", "traced step, all devices together", {
    "step": ("int64", "N of ProfilerStep#N, or place among the annotations that mark steps, from 0"),
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "devices": ("int64", "devices that show it"),
    "window_ns": ("int64", "length of the step, mean over the devices; the parts below add up to it"),
    "compute_alone_ns": ("int64", "mean over the devices: compute without communication beside it"),
    "overlap_ns": ("int64", "mean over the devices: compute and communication at once"),
    "exposed_transfer_ns": ("int64", "mean over the devices: exposed communication that moves data"),
    "exposed_wait_ns": ("int64", "mean over the devices: exposed communication that waits for other ranks"),
    "exposed_unsplit_ns": ("int64", "mean over the devices: exposed communication that may be waiting or transfer"),
    "exposed_memory_ns": ("int64", "mean over the devices: copies and fills beside which nothing else runs"),
    "idle_ns": ("int64", "mean over the devices: nothing runs"),
    "shortest_ns": ("int64", "length of the step on the device where it is shortest"),
    "longest_ns": ("int64", "length of the step on the device where it is longest"),
    "cpu_ns": ("Int64", "how long the annotation of the step is on the CPUs, mean over the ranks; NA without one"),
    "unseen_ns": (
        "Int64",
        (
            "how long launched work was held up by work from before the trace, which is no part of the step: the most "
            "of any rank; NA if it was not"
        ),
    ),
    "left_out": (
        "string",
        (
            "NA if the first screen and the verdict count it: a whole step like most others; else why not: beginning, "
            "drain or end, if that part of its window is not the step's own, unshown if a rank's trace lacks what was "
            "launched in it, long or short beside others of its kind, or kind, if steps of another kind count"
        ),
    ),
    "note": ("string", "the same in words, and that the trace lacks what came before"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

CALLS = Schema("calls", "rank and collective call", {
    "call_id": ("int64", "number of the call in this run, by rank and start"),
    "rank": RANK,
    "cycle": CYCLE,
    "device": DEVICE,
    "stream": ("int64", "stream; on CPU runs the thread"),
    "step": STEP,
    "name": ("string", "kernel, or gloo operation"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group"),
    "dtype": DTYPE,
    "in_elems": ("Int64", "input elements of this rank"),
    "out_elems": ("Int64", "output elements of this rank"),
    "in_split": ("string", "all_to_all: rows of dimension 0 for each rank of the group, as recorded"),
    "out_split": ("string", "all_to_all: rows of dimension 0 from each rank of the group, as recorded"),
    "size_bytes": SIZE,
    "seq": ("Int64", "sequence number within the process group"),
    "comms_id": ("string", "id that is equal on all ranks of one collective"),
    "root": ROOT,
    "turn": TURN,
    "batch": ("Int64", "number of the first of the sends and receives that run as one kernel; NA for a single one"),
    "issue_ns": ("Int64", "start of its launch, or c10d operator; NA if enqueued before the profiler started"),
    "start_ns": ("int64", "start on that rank's clock"),
    "dur_ns": ("int64", "duration, waiting included"),
    "metadata_from": ("string", "kernel, record_param_comms, annotation, c10d, name, dump or none"),
    "partial": PARTIAL,
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

CLOCKS = Schema("clocks", "rank", {
    "rank": RANK,
    "host": ("string", "host name; ranks of one host share a clock"),
    "linked": (
        "int64",
        "first of the ranks whose clocks can be compared with this one, through common collectives or the clock probe",
    ),
    "offset_ns": ("int64", "how far its clock is ahead of that rank's"),
    "drift_ppm": ("float64", "how much faster it runs, in millionths"),
    "origin_ns": ("int64", "the time at which the offset holds"),
    "uncertainty_ns": ("int64", "offset and drift may be wrong by this much, anywhere in the window"),
    "bends": (
        "string",
        "where it jumped or did not run evenly: `time:ns`, by how much it is further ahead then, `>` across a jump",
    ),
    "bent_uncertainty_ns": ("int64", "with that taken into account as well, times may be wrong by this much"),
    "probe_offset_ns": ("Int64", "what the clock probe alone says, at the first start; NA where it did not measure"),
    "probe_uncertainty_ns": ("Int64", "that offset may be wrong by this much, anywhere in the window"),
    "basis": ("string", "how the offset is known"),
    "partial": ("boolean", "a file of this rank, or of the one it is compared with, is damaged"),
})  # fmt: skip

COLLECTIVES = Schema("collectives", "collective, all ranks together", {
    "collective_id": ("int64", "number of the collective in this run, by first start"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group; 2 for send_recv"),
    "dtype": DTYPE,
    "size_bytes": ("Int64", "size S; for an uneven all_to_all, the largest over the ranks"),
    "seq": ("Int64", "sequence number within the process group"),
    "matched_by": ("string", "comms_id, seq, step, order, time, or none: a call that could not be matched"),
    "certain": ("boolean", "no other pairing of the calls fits as well; False for an unmatched call"),
    "note": ("string", "why it is unmatched, uncertain or partial, or has no transfer time"),
    "ranks": ("string", "ranks seen, ascending, separated by spaces"),
    "complete": ("boolean", "every rank of the process group was seen"),
    "hot_rank": ("Int64", "rank that sends or receives most in an uneven all_to_all; NA if it is even"),
    "imbalance_frac": ("Float64", "how far that is above the mean over the ranks"),
    "first_start_ns": ("int64", "earliest start"),
    "last_start_ns": ("Int64", "latest start: the last rank arrives"),
    "last_end_ns": ("int64", "latest end"),
    "first_rank": ("Int64", "rank that arrived first"),
    "last_rank": ("Int64", "rank that arrived last, of those seen"),
    "last_by_ns": ("Int64", "how much later the last rank arrived than the one before it"),
    "arrival_skew_ns": ("Int64", "latest start - earliest start"),
    "end_skew_ns": ("Int64", "latest end - earliest end"),
    "min_dur_ns": ("int64", "shortest duration"),
    "last_arrival_to_last_end_ns": ("Int64", "latest end - latest start"),
    "transfer_low_ns": ("Int64", "lower bound: min_dur_ns, without clocks; less for a receiving CPU or if ends differ"),
    "transfer_high_ns": ("Int64", "upper bound: from when data could move to the latest end, or a receiving CPU's"),
    "transfer_ns": ("Int64", "median of durations without waiting, of ranks that end together; a receiving CPU's"),
    "algbw_gb_per_s": ("Float64", "size_bytes / transfer_ns"),
    "algbw_low_gb_per_s": ("Float64", "size_bytes / transfer_high_ns"),
    "algbw_high_gb_per_s": ("Float64", "size_bytes / transfer_low_ns"),
    "busbw_gb_per_s": ("Float64", "algbw x bus factor"),
    "busbw_low_gb_per_s": ("Float64", "algbw_low x bus factor"),
    "busbw_high_gb_per_s": ("Float64", "algbw_high x bus factor"),
    "partial": PARTIAL_MEMBER,
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

PARTICIPATION = Schema(
    "participation",
    "collective and rank",
    {
        "collective_id": MEMBERS.columns["collective_id"],
        **{column: COLLECTIVES.columns[column] for column in ("collective", "process_group", "size_bytes")},
        "step": STEP,
        **MEMBERS.columns,
    },
)

SUMMARY = Schema("summary", "fact about the run", {
    "item": ("string", "what"),
    "value": ("string", "in words"),
})  # fmt: skip
