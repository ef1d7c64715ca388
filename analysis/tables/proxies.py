"""What NCCL's proxies waited for while they moved the data of collectives through the network."""

from __future__ import annotations

from ..core.declaring import TableEntry, Topic
from ..core.frames import pd
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL
from ..core.tables.events import PROXY_SUMS

_PHASES = ("gpu", "peer", "wire", "flush")
_KEY = ["rank", "collective", "process_group", "direction"]

PROXIES = Schema("proxies", "rank, collective, process group and direction", {
    "rank": ("int64", "rank whose proxies these are"),
    "collective": ("string", "all_reduce, ...; what the log names otherwise as it stands there"),
    "process_group": ("string", "communicator"),
    "direction": ("string", "send or recv"),
    "calls": ("int64", "calls for which steps of proxies were recorded"),
    "steps": ("int64", "chunks that the proxies sent or received for them"),
    "moved_bytes": ("Int64", "bytes of these steps; less than all if the Inspector dropped some, which a note says"),
    "gpu_ns": ("Int64", "sum over steps: until this rank's GPU produced what is sent, or consumed what came"),
    "peer_ns": ("Int64", "sum over steps, of send: until the peer had room for it"),
    "wire_ns": (
        "Int64", "sum over steps: of send until the network had sent it, of recv until it came, also from a late peer"
    ),
    "flush_ns": ("Int64", "sum over steps, of recv: until the GPU could see it"),
    "gpu_frac": ("Float64", "gpu_ns / (gpu_ns + peer_ns + wire_ns + flush_ns)"),
    "peer_frac": ("Float64", "peer_ns / the same sum"),
    "wire_frac": ("Float64", "wire_ns / the same sum"),
    "flush_frac": ("Float64", "flush_ns / the same sum"),
    "partial": PARTIAL,
})  # fmt: skip


@TableEntry(
    PROXIES,
    Topic.communication,
    "What NCCL's proxies waited for: GPU, peer or network.",
    "over-time.md#what-proxies-wait-for",
    command="table proxies",
    after="traffic",
    none_found=(
        "no log of NCCL Inspector has steps of proxies; set NCCL_INSPECTOR_ENABLE_PROXY=1 and "
        "NCCL_INSPECTOR_DUMP_PROXY_STEPS=1"
    ),
    narrow=("rank", "collective", "direction", "gpu_frac", "peer_frac", "wire_frac", "flush_frac", "steps"),
)
def proxies(comm_args: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, collective, process group and direction, of the steps that NCCL's proxies took."""
    parts = [_of_direction(comm_args, direction) for direction in PROXY_SUMS]
    rows = pd.concat([part for part in parts if len(part)] or parts[:1])
    if not len(rows):
        return PROXIES.empty()
    summed = ["calls", "steps", "moved_bytes", *(f"{phase}_ns" for phase in _PHASES)]
    totals = rows.groupby(_KEY, sort=True, dropna=False)[summed].sum(min_count=1).reset_index()
    times = totals[[f"{phase}_ns" for phase in _PHASES]].astype("Float64")
    whole = times.sum(axis=1, min_count=1).replace(0, pd.NA)
    for phase in _PHASES:
        totals[f"{phase}_frac"] = times[f"{phase}_ns"] / whole
    return PROXIES.conform(totals)


def _of_direction(comm_args: pd.DataFrame, direction: str) -> pd.DataFrame:
    """The calls for which proxies took steps in this direction; what this direction does not have is NA."""
    having = comm_args[comm_args[f"proxy_{direction}_steps"].notna()]

    def summed(what: str, times: int = 1) -> pd.Series:
        name = f"proxy_{direction}_{what}"
        return having[name] * times if name in having else pd.Series(pd.NA, having.index, "Int64")

    return pd.DataFrame(
        {
            "rank": having["rank"],
            "collective": having["op"],
            "process_group": having["process_group"],
            "direction": direction,
            "calls": pd.Series(1, having.index, "Int64"),
            "steps": summed("steps"),
            "moved_bytes": summed("bytes"),
            **{f"{phase}_ns": summed(f"{phase}_us", 1000) for phase in _PHASES},
        }
    )
