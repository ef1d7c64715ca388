"""The part of the verdict that names the ranks others wait for, and why, or says that none stands out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import pandas as pd

from ....common.wording import counted, listed, shortened
from ..causes.blame import as_late, shares_of_waiting, standing_out
from ..causes.cpu_work import OUTSIDE
from ..prices import Excess, LateRanks, Prices, Since
from .doing import (
    Doing,
    in_python,
    instead_of_computing,
    longer_on_cpu,
    on_cpu,
    on_device,
    only_step,
    region_on_device,
)
from .slow_devices import SlowDevice

_MOST_NAMED = 3
_LONGEST = 60  # letters of a kernel's name
_SPREAD_FROM = 0.5  # of the waiting must be explained, with no rank standing out, to call it jitter
_UNEXPLAINED_FROM = 0.05  # of the waiting: less is noise
_MOST_OF_IT = 0.5  # of what a rank computes longer in a step must be due to its slow device
_NEARLY_ALL = 0.9  # of the waiting for a rank: what else makes it late, perhaps in other steps, need not be said
_LEAST_MS = 0.01  # how much longer or later is not said if it is less: "0 us later" explains nothing
# What one rank, or several, do longer or later than others.
_DOES = {
    "compute": ("computes", "compute", "longer"),
    "memory": ("copies", "copy", "longer"),
    "comm": ("is held up by communication", "are held up by communication", "longer"),
    "data": ("waits for its data loader", "wait for their data loaders", "longer"),
    "cpu": ("gives its device work", "give their devices work", "later"),
    "start": ("begins the traced step", "begin the traced step", "later"),
}
_ON_DEVICE = ("compute", "memory")


class LateInWords(NamedTuple):
    """Those that cause `frac` of the waiting, such as `rank 1`, and why, as a clause or empty."""

    who: str
    why: str
    frac: float


class Culprits(NamedTuple):
    """Late ranks and why they are late: tables `ranks`, `hosts`, `lateness` and `late_work`, over `steps` steps.

    `slow` gives ranks whose device is slower than others at the same work. `steps` is 0 where none are marked. It is
    None if the steps are one event, such as a long step: then lateness is given in all, not per step. `groups` is the
    process group of each collective, `participation` the table, and `on_cpu` says that the run has no GPU.
    """

    ranks: pd.DataFrame
    hosts: pd.DataFrame
    lateness: pd.DataFrame
    late_work: pd.DataFrame
    slow: Callable[[], Mapping[int, SlowDevice]]
    groups: pd.Series[int]
    steps: int | None
    on_cpu: bool
    participation: pd.DataFrame

    def sentence(self) -> str:
        """`, 72% of it for rank 7, which ...`: the share of all waiting by rank, and the share without culprit."""
        shares = self._shares()
        explained = float(shares.sum())
        if not explained:
            return " for other ranks, none of them late by more than clocks are uncertain"
        clause = self.named()
        if not clause and explained >= _SPREAD_FROM:
            clause = f": jitter, all are late in turn, no rank for more than {shares.max():.0%} of it"
        clause = clause or ", and no rank stands out"
        rest = 1 - explained
        return clause + (f"; {rest:.0%} of the waiting is not explained" if rest >= _UNEXPLAINED_FROM else "")

    def named(self, of: str = "it") -> str:
        """The ranks that stand out and why they are late; empty if none does. Shares are fractions `of` something."""
        shares = self._shares()
        host = self._host(shares, of)
        if host is not None:
            return f", {host}"
        named = standing_out(shares)
        if len(named) == 1:
            who, alike = self._with_those_as_late(named[0])
            late = self._late_clause(named[0], "the first" if alike else "")
            return f", {shares[named[0]]:.0%} of {of} for {who}{late}"
        if named:
            most = ", ".join(f"{self.placed(rank)} ({shares[rank]:.0%})" for rank in named[:_MOST_NAMED])
            return f", {shares[named].sum():.0%} of {of} for {len(named)} ranks: {most}" + self._late_clause(
                named[0], "the first"
            )
        return ""

    def in_words(self) -> LateInWords | None:
        """The ranks, or the host, that stand out, for a headline; None if none does."""
        shares = self._shares()
        host = self._late_host(shares)
        if host is not None:
            name, ranks, frac = host
            latest = int(shares.reindex(ranks).idxmax())
            why = self.why(latest)
            who = f"host {name} ({len(ranks)} ranks)"
            return LateInWords(who, f"its rank {latest} {why}" if why else "", frac)
        named = [int(rank) for rank in standing_out(shares)]
        if not named:
            return None
        why, frac = self.why(named[0]), float(shares[named].sum())
        if len(named) == 1:
            return LateInWords(self._with_those_as_late(named[0])[0], f"rank {named[0]} {why}" if why else "", frac)
        who = f"ranks {listed([str(rank) for rank in named])}" if len(named) <= _MOST_NAMED else f"{len(named)} ranks"
        return LateInWords(who, f"rank {named[0]} {why}" if why else "", frac)

    def _shares(self) -> pd.Series[float]:
        return shares_of_waiting(self.ranks, "rank")

    def _host(self, shares: pd.Series[float], of: str) -> str | None:
        late = self._late_host(shares)
        if late is None:
            return None
        host, ranks, frac = late
        why = self._late_clause(int(shares.reindex(ranks).fillna(0).idxmax()), "whose ranks", several=True)
        return f"{frac:.0%} of {of} for host {host} ({len(ranks)} ranks, all of them late){why}"

    def _late_host(self, shares: pd.Series[float]) -> tuple[str, list[int], float] | None:
        """A host with several late ranks, unless a single rank explains it: its name, ranks and share."""
        by_host = shares_of_waiting(self.hosts, "host")
        ranks_of = dict(zip(self.hosts["host"], self.hosts["ranks"].str.split(), strict=True))
        for host in standing_out(by_host) if len(by_host) > 1 else []:
            ranks = [int(r) for r in ranks_of[host]]
            shares_of_host = shares.reindex(ranks).fillna(0)
            if len(ranks) > 1 and not standing_out(shares_of_host / max(shares_of_host.sum(), 1e-12)):
                return host, ranks, float(by_host[host])
        return None

    def who(self) -> str | None:
        """A sentence about the rank that the others wait for most; None if none stands out.

        `Rank 2 is late by 995.5 ms per step: its thread is blocked in Python, outside of any operator, inside ...`.
        """
        named = standing_out(self._shares())
        late = self._late(int(named[0])) if named else None
        if late is None:
            return None
        doing = self._doing(late)
        does = f"{self._does(late)}{self._where(late)}"
        if late.because == "start":
            return f"R{self.placed(late.rank)[1:]} {does}"
        reason = doing.clause if doing else f"it {does}"
        return f"R{self.placed(late.rank)[1:]} is late by {length(late.more_ms)}{late.per}{late.where}: {reason}"

    def placed(self, rank: int) -> str:
        """`rank 5 (tp 1, pp 0, dp 1)`, or `rank 5` where its place in the job is not known."""
        place = self.ranks["place"][self.ranks["rank"] == rank].dropna()
        return f"rank {rank}" + (f" ({place.iloc[0]})" if len(place) else "")

    def _with_those_as_late(self, rank: int) -> tuple[str, bool]:
        alike = as_late_in_words(self.participation, [rank])
        return f"{self.placed(rank)}{f' and {alike}' if alike else ''}", bool(alike)

    def standing_out(self) -> set[int]:
        """The ranks that the others wait for most."""
        return set(standing_out(self._shares()))

    def why(self, rank: int, excess: Excess | None = None) -> str | None:
        """`gives its device work 2.7 ms per step later than the others; its CPU is in ...`; None if not known.

        Its `excess` may say since when, and how much its CPU works longer, if its lateness shows less: in a pipeline,
        the other stages come as late.
        """
        late = self._late(rank)
        if late is None:
            return None
        if excess is not None and late.because == "cpu" and late.per:
            of_cpu_ms = excess.cpu_ns / 1e6
            late = late._replace(more_ms=late.more_ms if late.more_ms >= _MOST_OF_IT * of_cpu_ms else of_cpu_ms)
        since = None if excess is None else excess.since if late.because in _ON_DEVICE else excess.cpu_since
        if since is not None and late.per:
            more_ms = late.more_ms * late.steps / since.steps
            late = late._replace(more_ms=more_ms, where=_from(since), steps=since.steps)
        doing = self._doing(late)
        return self._does(late) + (f"; {doing.clause}" if doing else self._where(late))

    def on_cpu_later(self, rank: int) -> str:
        """The clause of `why` for a rank that nobody seems to wait for."""
        doing = on_cpu(self.late_work, rank)
        return "gives its device work later than the others" + (f"; {doing.clause}" if doing else "")

    def _late_clause(self, rank: int, who: str = "", *, several: bool = False) -> str:
        late = self._late(rank)
        if late is None:
            return ""
        doing = self._doing(late)
        of = f"of rank {rank}, " if several else ""
        where = f"; {of}{doing.clause}" if doing else self._where(late)
        return f"{', ' + who if who else ', which'} {self._does(late, several=several)}{where}"

    def _late(self, rank: int) -> _Late | None:
        rows = self.lateness[(self.lateness["rank"] == rank) & (self.lateness["origin_rank"] == rank)]
        rows = rows[rows["because"].notna()].astype(
            {"caused_wait_ns": "Float64", "new_ns": "Float64"}
        )  # sums may be long
        if not len(rows):
            return None
        by_reason = rows.groupby("because")["caused_wait_ns"].sum()
        before = rows[rows["because"] == "start"]["new_ns"].max()
        traced = by_reason.drop("start", errors="ignore")
        because = str((traced if traced.sum() > by_reason.sum() / 2 else by_reason).idxmax())
        rows = rows[rows["because"] == because]
        new = rows.groupby(rows["collective_id"].map(self.groups))["new_ns"]
        if because == "start":  # there is one first step
            return _Late(rank, because, float(new.max().max()) / 1e6, "")
        if self.steps is None:
            return _Late(rank, because, float(new.sum().max()) / 1e6, "")
        once = only_step(self.late_work, rank, because, self.steps)
        if once is not None:
            alone = " alone" if by_reason.max() >= _NEARLY_ALL * by_reason.sum() else ""
            return _Late(rank, because, float(new.sum().max()) / 1e6, "", f" in step {once}{alone}")
        whole, steps = float(new.sum().max()), self.steps
        if steps > 1 and pd.notna(before) and before >= _MOST_OF_IT * whole / steps:
            steps -= 1  # what made it late in the first one was before the trace
        more_ms = whole / 1e6 / steps if steps else float(new.median().max()) / 1e6
        return _Late(rank, because, more_ms, " per step" if self.steps else "", steps=steps or 1)

    def _does(self, late: _Late, *, several: bool = False) -> str:
        *does, more = _DOES[late.because]
        doing, more_ms = does[several], late.more_ms
        if late.because == "compute" and instead_of_computing(self.late_work, late.rank) is not None:
            doing = ("is in operators", "are in operators")[several]
        if self.on_cpu and late.because == "cpu":
            python, more = on_cpu(self.late_work, late.rank), "longer"
            doing = in_python(python, several=several)
            # How late that made it says less: it may do other things longer, too, or others may be late.
            longer_ms = longer_on_cpu(self.late_work, late.rank) / late.steps
            more_ms = longer_ms if longer_ms > 0 else more_ms
        much = f" {length(more_ms)}{late.per}" if more_ms >= _LEAST_MS else ""
        return f"{doing}{much} {more} than the others{late.where}"

    def _doing(self, late: _Late) -> Doing | None:
        """What the CPU of a late rank did, but for what `_does` says of a run without a GPU."""
        doing = on_cpu(self.late_work, late.rank) if late.because == "cpu" else None
        if self.on_cpu and doing is not None and doing.what == OUTSIDE:
            return None if doing.inside is None and doing.function is None else doing._replace(what=None)
        return doing

    def _where(self, late: _Late) -> str:
        if late.because == "data":
            doing = on_cpu(self.late_work, late.rank)
            return "" if doing is None or doing.function is None else f", {doing.function}"
        if late.because != "compute":
            return ""
        kernel = on_device(self.late_work, late.rank)
        of_step = late.more_ms if late.per else None
        return self.mostly(late.rank, kernel) + self.slow_device(late.rank, of_step)

    def mostly(self, rank: int, kernel: str | None) -> str:
        """`, mostly in gemm, inside `Block_17 > MLP_17``: where a rank computes longer; empty if nothing stands out."""
        region = region_on_device(self.late_work, rank)
        where = [f"in {short(kernel)}"] if kernel else []
        where += [region] if region else []
        does = instead_of_computing(self.late_work, rank)
        return (f", mostly {', '.join(where)}" if where else "") + ("" if does is None else f"; its thread {does}")

    def slow_device(self, rank: int, more_ms: float | None) -> str:
        """`; its GPU is 12% slower at every operator: throttled or shared`, if that is why a step computes longer."""
        slow = self.slow().get(rank)
        is_why = slow is not None and more_ms is not None and slow.ms_per_step >= _MOST_OF_IT * more_ms
        return f"; {slow.clause}" if slow is not None and is_why else ""


class Fault(NamedTuple):
    """Ranks or links that differ from others of their kind: what a step would gain if they did not, in ms.

    `late` are the ranks, empty for links. The gain `may_be_less` where ranks without a trace may be as late, and as
    much as `most_ms` where others wait for so much longer.
    """

    remedy: str
    ms: float
    verdict: str
    who: str
    why: str
    late: frozenset[int] = frozenset()
    several: bool = False
    may_be_less: bool = False
    most_ms: float | None = None

    def sentence(self, ms: str) -> str:
        """`Rank 5 costs 4.0 of 15.4 ms in a step (26%): it computes 4.0 ms per step longer than the others.`"""
        return f"{self.headline(ms)}: {self.why}."

    def headline(self, ms: str) -> str:
        """`Rank 5 costs 4.0 ms of every 15.4 ms step`."""
        return f"{self.who} cost{'' if self.several else 's'}{' up to' if self.may_be_less else ''} {ms}"


def faults_of(prices: Prices, culprits: Culprits) -> list[Fault]:
    """The faults of a run, the costliest first. `culprits` describe what a rank does."""
    faults = []
    if prices.late is not None:
        faults.append(_late_fault(prices.late, prices, culprits))
    if prices.slow is not None:
        slow, gain = prices.slow, prices.gains["slow_links"]
        why = f"the same takes {slow.slower_frac:.0%} longer over them than over others like them"
        who = f"{slow.label[0].upper()}{slow.label[1:]}"
        faults.append(
            Fault("slow_links", gain.ns / 1e6, "link-bound", who, why, several=True, may_be_less=gain.low_ns <= 0)
        )
    return sorted(faults, key=lambda fault: -fault.ms)


def _late_fault(late: LateRanks, prices: Prices, culprits: Culprits) -> Fault:
    named, ranks = [str(rank) for rank in late.ranks], frozenset(late.ranks)
    reasons = {
        rank: late_reason(rank, late.excess[rank], culprits, on_cpu=rank in late.on_cpu)
        for rank in late.ranks[:_MOST_NAMED]
    }
    first, several = reasons[late.ranks[0]], len(named) > 1 and late.host is None
    if late.host is not None:
        who, why = f"Host {late.host} ({len(named)} ranks)", f"its rank {named[0]} {first}"
    elif not several:
        who, why = f"R{culprits.placed(late.ranks[0])[1:]}", f"it {first}"
    elif len(named) > _MOST_NAMED:
        who, why = f"Ranks {shortened(sorted(late.ranks), _MOST_NAMED)}", f"rank {named[0]} {first}"
    else:
        who = f"Ranks {listed(named)}"
        shown = [rank for rank in reasons if late.excess[rank].whole_ns / 1e6 >= _LEAST_MS]
        why = ", and ".join(f"rank {rank} {reasons[rank]}" for rank in shown or reasons)
    most_ms = None
    if prices.unexplained_ns is not None:
        most_ms = prices.unexplained_ns / 1e6
        why += f"; others wait for up to {length(most_ms)}, which goes too if it holds up their CPUs, as no trace shows"
    gain = prices.gains["no_straggler"]
    ms, may_be_less = gain.ns / 1e6, gain.low_ns <= 0
    if may_be_less and most_ms is not None:
        ms, most_ms = most_ms, None
    return Fault("no_straggler", ms, "skew-bound", who, why, ranks, several, may_be_less=may_be_less, most_ms=most_ms)


def late_reason(rank: int, excess: Excess, culprits: Culprits, *, on_cpu: bool) -> str:
    """`computes 4.0 ms per step longer than the others, mostly in gemm`: what makes this rank late."""
    if on_cpu:
        return culprits.why(rank, excess) or culprits.on_cpu_later(rank)
    # How late it came says less: where several are late, each is so only where it comes last.
    is_copying = excess.copies_ns > excess.compute_ns
    ms = max(excess.compute_ns, excess.copies_ns) / 1e6
    is_computing = instead_of_computing(culprits.late_work, rank) is None
    does = "copies" if is_copying else "computes" if is_computing else "is in operators"
    kernel = "" if is_copying else culprits.mostly(rank, excess.kernel)
    if excess.step is not None and culprits.steps:
        return f"{does} {length(ms * culprits.steps)} longer than the others in step {excess.step} alone{kernel}"
    slow = culprits.slow_device(rank, ms) if culprits.steps and not is_copying else ""
    if excess.since is not None and culprits.steps:
        ms = ms * culprits.steps / excess.since.steps
        return f"{does} {length(ms)} per step longer than the others{_from(excess.since)}{kernel}{slow}"
    return f"{does} {length(ms)}{' per step' if culprits.steps else ''} longer than the others{kernel}{slow}"


def _from(since: Since) -> str:
    return f" from step {since.step} on"


class _Late(NamedTuple):
    """Reason and amount of a rank's lateness: per step, which is the mean of `steps`, per occasion, or in one step."""

    rank: int
    because: str
    more_ms: float
    per: str
    where: str = ""
    steps: int = 1


def as_late_in_words(participation: pd.DataFrame, late: Collection[int]) -> str:
    """`7 ranks nearly as late (1, 9, ...)`: others would wait for them without these; empty if there are none."""
    ranks = sorted(as_late(participation, late))
    return f"{counted(len(ranks), 'rank')} nearly as late ({shortened(ranks, _MOST_NAMED)})" if ranks else ""


def length(ms: float) -> str:
    """`2.2 ms`, `140 us`."""
    return f"{ms:,.1f} ms" if ms >= 0.1 else f"{ms * 1000:.0f} us"


def short(name: str) -> str:
    """A kernel's name without template arguments and parameters; of a long one the last part, or its beginning."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("<")[0].split("(")[0].strip()
    last = plain.rpartition("::")[2] if len(plain) > _LONGEST else plain or name
    return last if len(last) <= _LONGEST else f"{last[:_LONGEST]}..."
