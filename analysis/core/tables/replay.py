"""Tables of replays and predictions."""

from __future__ import annotations

from ..schema import Schema
from .columns import COLLECTIVE, DEVICE, GROUP, PARTIAL_RUN, PG_RANKS, RANK, SIZE, STEP

REPLAY_STEPS = Schema("replay_steps", "step, played again from what waits for what", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "ranks": ("int64", "ranks that have it"),
    "measured_ns": ("int64", "its length, mean over devices"),
    "with_delays_ns": ("int64", "the same played again, each activity as long after what it waits for as measured"),
    "replayed_ns": ("int64", "the same, with no more than the usual delays"),
    "error_frac": ("Float64", "replayed_ns / measured_ns - 1"),
    "exposed_comm_ns": ("int64", "communication that nothing hides, mean over devices"),
    "blocking_ns": ("int64", "so much later is its compute done because it waits for communication, by the replay"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

ATTRIBUTION = Schema("attribution", "part of the run whose jitter makes steps longer", {
    "of": ("string", (
        "compute, operation (activities of a name), cpu (its work before launches), data (what of it loads data), "
        "collective, group (of processes), rank, host, program (ranks that call the same collectives equally often), "
        "coordinate (ranks at the same place of groups that are alike)"
    )),
    "part": ("string", "which of these, NA for all; ranks separated by blanks, of more than 32 the 16 most waited for"),
    "slowdown_frac": ("Float64", "length of a step if this part alone were as it is / if nothing had jitter - 1"),
    "gain_ns": ("int64", "by how much a step were shorter if this part alone had no jitter, mean over steps"),
    "gain_frac": ("Float64", "gain_ns / length of a step as it is"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_LINK = (
    "string",
    "compute, copy, transfer, unsplit (transfer or wait), cpu (before launches), launch (until it began)",
)

CRITICAL_PATH = Schema("critical_path", "rank and kind of link on the critical path", {
    "rank": RANK,
    "kind": _LINK,
    "dur_ns": ("int64", "how long the critical path runs through it, mean over steps"),
    "share_frac": ("Float64", "its share of the critical path"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

CRITICAL_PATH_STEPS = Schema("critical_path_steps", "step, rank and kind of link on the critical path", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "rank": RANK,
    "kind": _LINK,
    "dur_ns": ("int64", "how long the critical path runs through it"),
    "share_frac": ("Float64", "its share of the critical path in this step"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

CRITICAL_PATH_PIECES = Schema("critical_path_pieces", "long piece of the critical path, ten of each step", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "rank": RANK,
    "kind": _LINK,
    "name": ("string", "its longest activity; of cpu the outermost operator, NA for none; NA of launch"),
    "start_ns": ("int64", "when it begins, on the common clock"),
    "dur_ns": ("int64", "how long it is: links of one kind that follow each other on a rank are one piece"),
    "share_frac": ("Float64", "its share of the critical path in this step"),
    "activities": ("int64", "how many activities it consists of"),
    "waiting_rank": ("Int64", "rank that waited for its end; NA where the path stays on its rank"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_RELEASED_BY = (
    "string",
    (
        "what came last of all it waited for: host (its launch), collective (the one before on its stream), producer "
        "(what made its input), stream (anything else before it there); NA where the trace shows none"
    ),
)

RELEASES = Schema("releases", "process group, collective, and what released its exposed calls", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "collective": COLLECTIVE,
    "released_by": _RELEASED_BY,
    "calls": ("int64", "calls that were exposed at all, over all ranks"),
    "exposed_ns": ("int64", "how long they ran while their devices did not compute"),
    "exposed_share_frac": ("Float64", "its share of all exposed communication of calls"),
    "median_slack_ns": ("Int64", "so much earlier their input was there, median; NA where it is not known"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

RELEASES_CALLS = Schema("releases_calls", "exposed collective call, and what released it", {
    "rank": RANK,
    "device": DEVICE,
    "step": STEP,
    "stream": ("Int64", "stream; on CPU runs the thread"),
    "collective_id": ("Int64", "collective; NA if it was not matched"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "size_bytes": SIZE,
    "start_ns": ("int64", "when it began, on the common clock"),
    "exposed_ns": ("int64", "how long it ran while its device did not compute"),
    "waited_for": ("Int64", "rank that it then waited for; NA if for none, or if that is not known"),
    "released_by": _RELEASED_BY,
    "released_name": ("string", "the activity that did; NA of the host"),
    "since_launch_ns": ("Int64", "so long before it began it was launched; NA where the launch is not in the trace"),
    "since_before_ns": ("Int64", "so long before it began the one before on its stream had ended; NA for the first"),
    "slack_ns": ("Int64", "so long before it began its input was there; NA where it is not known what made it"),
    "earliest_ns": ("Int64", "start_ns - slack_ns: when it could have begun, launched in time on a stream of its own"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

PREDICTIONS = Schema("predictions", "thing that could be different", {
    "scenario": ("string", "what is different"),
    "step_ns": ("Int64", "length of a step then: measured, less gain_ns; NA where `unknown` says why"),
    "low_ns": ("Int64", "the shortest it may be: over ways of the change, delays, replay error and chance"),
    "high_ns": ("Int64", "the longest it may be"),
    "gain_ns": ("Int64", "by how much a step is shorter, mean over steps and devices"),
    "gain_frac": ("Float64", "gain_ns / measured length of a step"),
    "throughput_factor": ("Float64", "work done in the same time / as measured; NA with as many ranks as there are"),
    "efficiency_frac": ("Float64", "throughput_factor / how many times as many ranks; NA with as many ranks"),
    "unknown": ("string", "why a number is NA"),
    "replay_error_frac": ("Float64", "by how much the replay of the run as it is misses a step, median over steps"),
    "assumes": ("string", "what is taken for granted"),
    "partial": PARTIAL_RUN,
})  # fmt: skip
