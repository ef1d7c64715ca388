"""Columns that several tables share: dtype and meaning. Conventions: `communication.py`."""

from __future__ import annotations

RANK = ("int64", "global rank")
CYCLE = ("int64", "profiling cycle of that rank, from 0: one trace file each")
DEVICE = (
    "string",
    "CUDA ordinal on that rank, or `cpu` for runs without a GPU; devices of one process are never merged",
)
COLLECTIVE = (
    "string",
    (
        "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, barrier, send, recv, "
        "send_recv (a matched pair), peer_copy; NA where the trace does not say"
    ),
)
GROUP = ("string", "name of the process group, NA where the trace does not say")
PG_RANKS = ("string", "global ranks of the process group, ascending, separated by spaces")
PLACE = ("string", "its place in each dimension: `tp 0, pp 3, dp 1`; NA where groups tell of fewer than two")
ROLE = (
    "string",
    (
        "tp, cp, sp, dp, dp_shard, dp_replicate, pp, ep, etp, edp, several of them joined (dp-cp), embedding, or "
        "world; NA if unknown"
    ),
)
GROUP_ROLE = ("string", "what the process group is for, as in `groups`; NA if that is not known, or it is all ranks")
DTYPE = ("string", "element type, spelled as in torch: float32, bfloat16, int64, float8_e4m3fn, ...")
SIZE = ("Int64", "size S as nccl-tests defines it: the whole array, not one rank's share")
PARTIAL = ("boolean", "a file of this rank contradicts itself, or is damaged: nothing after that is counted here")
PARTIAL_MEMBER = (
    "boolean",
    "a file of a rank that takes part, or might, contradicts itself, or is damaged: nothing after that is counted here",
)
PARTIAL_RUN = ("boolean", "a file of any rank contradicts itself, or is damaged: nothing after that is counted here")
ROOT = ("Int64", "global rank: root of a rooted collective, peer of a send or receive")
TURN = (
    "Int64",
    "place among the calls of its group, or to or from its peer, issued in that step, from 0; NA if unknown",
)
STEP = ("Int64", "N of the ProfilerStep#N in which it was launched; NA for none")
STEP_NUMBER = ("int64", "N of ProfilerStep#N")
STEP_OF_CALL = ("Int64", "N of the ProfilerStep#N in which the call began; NA outside of all")
KIND = (
    "string",
    (
        "prefill, decode, mixed (both), train, eval, checkpoint, compile, or another word from the annotation that "
        "marks it; NA if neither that nor the side file says"
    ),
)
REQUESTS = ("Int64", "requests in the step, NA if its annotation does not say, or ranks say different numbers")
TOKENS = ("Int64", "tokens that the step processes, NA likewise")

KERNEL = {
    "name": ("string", "kernel or copy between GPUs; on CPU runs, operator"),
    "kind": ("string", "compute or comm"),
}  # fmt: skip
OPERATOR = {
    "operator": ("string", "innermost CPU operator around the launch; NA for launches outside every operator"),
    "kind": ("string", "compute or comm; NA for an operator that launched both"),
    "kernels": ("int64", "different kernels that it launched"),
}  # fmt: skip

PHASE = (
    "string",
    "backward; recompute: forward operators that run again in it; NA: called directly, forward, optimizer ...",
)

HOW_TO_MARK = "call profiler.step() in the loop, or in JAX put StepTraceAnnotation around each step"
"""What to do where no steps are marked."""
NO_STEPS_MARKED = f"no activity belongs to a step; {HOW_TO_MARK}, or say by --steps what marks steps"
NO_SHAPES_RECORDED = (
    "no operator in the traces has shapes; capture with record_shapes=True, as commtrace's own captures do"
)
NO_REGIONS = (
    "no record_function, nn.Module or compiled region is in the traces, besides those that mark steps; put "
    "torch.profiler.record_function around parts of the step, or capture with_modules=True"
)
"""These say why a table has no rows."""
