"""For whom the others wait, and why: the part of the verdict that names ranks, or says that none stands out."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ..causes.blame import standing_out

_MOST_NAMED = 3
_SPREAD_FROM = 0.5  # of the waiting must be explained, with no rank standing out, to call it jitter
# What one rank, or several, do longer than others.
_DOES = {
    "compute": ("computes", "compute"),
    "memory": ("copies", "copy"),
    "comm": ("is held up by communication", "are held up by communication"),
    "data": ("waits for its data loader", "wait for their data loaders"),
    "cpu": ("waits for its CPU to launch work", "wait for their CPUs to launch work"),
}
_ON_CPU = ("is busy on its CPU outside of operators", "are busy on their CPUs outside of operators")


class Culprits(NamedTuple):
    """Who is late and why: tables `ranks`, `hosts` and `lateness` of a run, and over how many steps."""

    ranks: pd.DataFrame
    hosts: pd.DataFrame
    lateness: pd.DataFrame
    groups: pd.Series[int]
    steps: int
    on_cpu: bool

    def sentence(self) -> str:
        """`, 72% of it for rank 7, which ...`; who is to blame for how much of all waiting, and how much nobody is."""
        shares = self._shares()
        explained = float(shares.sum())
        if not explained:
            return " for other ranks, none of them late by more than clocks are uncertain"
        found = self.named()
        if not found and explained >= _SPREAD_FROM:
            found = f": jitter, all are late in turn, no rank for more than {shares.max():.0%} of it"
        found = found or ", and no rank stands out"
        return found + (f"; {1 - explained:.0%} of it is not explained" if explained < 0.995 else "")

    def named(self) -> str:
        """The ranks that stand out, and why they are late; empty if none does."""
        shares = self._shares()
        host = self._host(shares)
        if host is not None:
            return f", {host}"
        named = standing_out(shares)
        if len(named) == 1:
            return f", {shares[named[0]]:.0%} of it for rank {named[0]}{self._why(named[0])}"
        if named:
            most = ", ".join(f"rank {rank} ({shares[rank]:.0%})" for rank in named[:_MOST_NAMED])
            return f", {shares[named].sum():.0%} of it for {len(named)} ranks: {most}" + self._why(
                named[0], "the first"
            )
        return ""

    def _shares(self) -> pd.Series[float]:
        return self.ranks.set_index("rank")["caused_wait_frac"].dropna().astype("float64")

    def _host(self, shares: pd.Series[float]) -> str | None:
        """A host with several late ranks, if not just one of them."""
        by_host = self.hosts.set_index("host")["caused_wait_frac"].dropna().astype("float64")
        ranks_of = dict(zip(self.hosts["host"], self.hosts["ranks"].str.split(), strict=True))
        for host in standing_out(by_host) if len(by_host) > 1 else []:
            ranks = [int(r) for r in ranks_of[host]]
            own = shares.reindex(ranks).fillna(0)
            if len(ranks) > 1 and not standing_out(own / max(own.sum(), 1e-12)):
                why = self._why(int(own.idxmax()), "whose ranks", several=True)
                return f"{by_host[host]:.0%} of it for host {host} ({len(ranks)} ranks, all of them late){why}"
        return None

    def _why(self, rank: int, who: str = "", *, several: bool = False) -> str:
        own = self.lateness[(self.lateness["rank"] == rank) & (self.lateness["origin_rank"] == rank)]
        own = own[own["because"].notna()].astype({"late_ns": "Float64", "new_ns": "Float64"})  # sums may be long
        if not len(own):
            return ""
        because = str(own.groupby("because")["late_ns"].sum().idxmax())
        own = own[own["because"] == because]
        groups = own["collective_id"].map(self.groups)
        new = own.groupby(groups)["new_ns"]
        more_ms = float(new.sum().max()) / 1e6 / self.steps if self.steps else float(new.median().max()) / 1e6
        does = (_ON_CPU if self.on_cpu and because == "cpu" else _DOES[because])[several]
        kernels = own[own["kernel"].notna()].groupby("kernel")["kernel_extra_ns"].sum()
        where = f", mostly in {short(str(kernels.idxmax()))}" if because == "compute" and len(kernels) else ""
        operators = own["operator"].dropna().mode()
        where = f", its CPU mostly in {operators.iloc[0]}" if because == "cpu" and len(operators) else where
        per = " per step" if self.steps else ""
        return f"{', ' + who if who else ', which'} {does} {length(more_ms)}{per} longer than the others{where}"


def length(ms: float) -> str:
    """`2.2 ms`, `140 us`."""
    return f"{ms:.1f} ms" if ms >= 0.1 else f"{ms * 1000:.0f} us"


def short(name: str) -> str:
    """A kernel's name without template arguments and parameters."""
    plain = name.removeprefix("void ").split("<")[0].split("(")[0].strip()
    return plain[-60:] or name[:60]
