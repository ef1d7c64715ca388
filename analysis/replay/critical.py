"""Find the critical path: the chain of activities over all ranks that ends with the run and never waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.arrays import Flags, Ints
from ..core.kinds import COMM, COMPUTE
from ..core.schema import Row
from ..core.steps import NEVER, step_windows
from ..metrics.clocks.table import aligned
from .cycles import ACTIVITY_KEYS, Played
from .edges import ready
from .engine import Playing
from .programs import LONG_AGO, NONE, Arrivals, RankProgram, arrivals, last_arrival, steps_of

_MOST_PIECES = 10
_SHORT_NS = 20_000
"""A launch up to this long belongs to the piece that it begins; where another rank goes on, to that before it."""
_RAN, _CPU, _LAUNCH = range(3)


class _Link(NamedTuple):
    """A link of the chain: rank, [start_ns, end_ns), and activity `row`; `waiter` waited for its end."""

    rank: int
    what: int
    row: int
    start_ns: int
    end_ns: int
    waiter: int


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of a run: its links by time, cut at steps, and names of activities.

    Columns of `links` are those of a link, `step` and `kind`.
    """

    links: pd.DataFrame
    names: pd.Series[str]

    @classmethod
    def of(cls, cycles: Sequence[list[Playing]], run: Played) -> CriticalPath:
        """Compute the critical path of a run, cycle by cycle."""
        parts = [_cut(pd.DataFrame(_chain(members), columns=[*_Link._fields]), members) for members in cycles]
        links = pd.concat([_nothing(), *parts], ignore_index=True)
        return cls(links.assign(kind=_kinds(links, run)), run.activities["name"])

    def by_rank(self) -> Iterator[Row]:
        """Yield a row per rank and kind, mean over steps."""
        steps = max(self.links["step"].nunique(), 1)
        return (row | {"dur_ns": round(row["dur_ns"] / steps)} for row in _shares(self.links))

    def by_step(self) -> Iterator[Row]:
        """Yield a row per step, rank and kind."""
        return (row | {"step": step} for step, links in self.links.groupby("step") for row in _shares(links))

    def longest(self, operators: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """The longest pieces of every step; those of a CPU are cut at its operators."""
        pieces = with_operators(self.pieces, operators, clocks)
        pieces["share_frac"] = pieces["dur_ns"] / pieces.groupby("step")["dur_ns"].transform("sum")
        pieces = pieces.sort_values(["step", "dur_ns"], ascending=[True, False], kind="stable")
        return pieces[pieces.groupby("step").cumcount() < _MOST_PIECES]

    @property
    def pieces(self) -> pd.DataFrame:
        """Merge links of one kind that follow each other on a rank; all columns except `share_frac`."""
        links = self.links
        took = links["end_ns"] - links["start_ns"]
        where = links[["step", "rank"]]
        goes_on = (where == where.shift(-1)).all(axis=1)
        short = (links["kind"] == "launch") & (took <= _SHORT_NS) & (goes_on | goes_on.shift(fill_value=False))
        kind = links["kind"].mask(short, links["kind"].shift(-1).where(goes_on, links["kind"].shift()))
        labelled = where.assign(kind=kind)
        number = (labelled != labelled.shift()).any(axis=1).cumsum()
        longest = took.mask(short, -1).groupby(number).transform("idxmax")
        name = links["row"].reindex(longest).map(self.names).astype("string").set_axis(links.index)
        labelled = labelled.assign(
            name=name.mask(kind.isin(["cpu", "launch"])),
            start_ns=links["start_ns"],
            end_ns=links["end_ns"],
            activities=(links["what"] == _RAN).astype("int64"),
            waiting_rank=links["waiter"].astype("Int64").mask(links["waiter"] == NONE),
        )
        first = labelled.groupby(number).nth(0).set_index(number.drop_duplicates())
        last = labelled.groupby(number).nth(-1).set_index(number.drop_duplicates())
        first["dur_ns"] = last["end_ns"] - first["start_ns"]
        first["waiting_rank"] = last["waiting_rank"]
        first["activities"] = labelled["activities"].groupby(number).sum()
        return first.drop(columns="end_ns")


@dataclass(frozen=True)
class _Reasons:
    """Why each activity of a rank began when it did.

    `ready_at` is when the last thing came that it waited for: its launch, where `by_launch`, else the end of `source`.
    """

    member: Playing
    source: Ints
    ready_at: Ints
    by_launch: Flags
    of_collective: dict[int, int]
    blocked: Ints

    @classmethod
    def of(cls, member: Playing) -> _Reasons:
        program = member.program
        ended, launched = ready(program)
        source = np.where(program.follows, np.arange(len(program)) - 1, NONE)
        for node, sources in member.edges.joins.items():
            last = max(sources, key=lambda each: int(program.end[each]))
            if program.end[last] > ended[node]:
                source[node], ended[node] = last, program.end[last]
        comm = np.flatnonzero(program.collective != NONE)
        waited = np.array([call for call, late in member.returns.items() if late >= 0], dtype=np.int64)
        return cls(
            member,
            source,
            np.maximum(ended, launched),
            launched > ended,
            dict(zip(program.collective[comm].tolist(), comm.tolist(), strict=True)),
            waited[np.argsort(program.call_end[waited], kind="stable")],
        )

    def last(self, node: int, arrived: Arrivals) -> tuple[int, int]:
        """The rank whose arrival an activity waited for, and its time in ns; the rank itself for other work."""
        program = self.member.program
        if program.collective[node] == NONE:
            return program.rank, int(program.start[node])
        return last_arrival(program, node, arrived)

    def paced(self, node: int) -> bool:
        """Whether a CPU worked between this activity and the one before on its lane."""
        return bool(self.member.program.paced[node] and self.source[node] == node - 1)

    def cpu_waited(self, time_ns: int) -> tuple[int, int]:
        """The last activity before this time whose end the CPU waited for, and that end; NONE for none."""
        program = self.member.program
        at = int(np.searchsorted(program.call_end[self.blocked], time_ns, side="right")) - 1
        if at < 0:
            return NONE, LONG_AGO
        source = max(self.member.edges.blocks[int(self.blocked[at])], key=lambda each: int(program.end[each]))
        return source, int(program.end[source])


def with_operators(pieces: pd.DataFrame, operators: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """Cut the CPU pieces of the critical path at outermost operators and the gaps between them.

    Where several threads run, the operator counts that began last. What is short belongs to what comes before it.
    """
    rows = []
    of_rank = {rank: _outermost(operators_of_rank, clocks) for rank, operators_of_rank in operators.groupby("rank")}
    for row in pieces.to_dict("records"):
        ran = of_rank.get(row["rank"])
        if row["kind"] != "cpu" or ran is None:
            rows.append(row)
            continue
        parts = list(_parts(row["start_ns"], row["start_ns"] + row["dur_ns"], *ran))
        for number, (name, since, until) in enumerate(parts):
            last = number == len(parts) - 1
            waiting = {"waiting_rank": row["waiting_rank"] if last else pd.NA}
            rows.append(row | waiting | {"name": name, "start_ns": since, "dur_ns": until - since})
    return pd.DataFrame(rows, columns=pieces.columns).astype(pieces.dtypes)


def _outermost(operators: pd.DataFrame, clocks: pd.DataFrame) -> tuple[Ints, Ints, list[str]]:
    """Begin, end and name of operators not nested in another of their thread, by begin on the common clock."""
    ordered = operators.sort_values(["thread", "start_ns", "dur_ns"], ascending=[True, True, False], kind="stable")
    end = ordered["start_ns"] + ordered["dur_ns"]
    before = end.groupby(ordered["thread"]).cummax().groupby(ordered["thread"]).shift(fill_value=LONG_AGO)
    kept = ordered[ordered["start_ns"] >= before]
    begin = aligned(kept["start_ns"], kept["rank"], clocks).to_numpy()
    order = np.argsort(begin, kind="stable")
    dur, names = kept["dur_ns"].to_numpy()[order], kept["name"].to_numpy(dtype=object)[order]
    return begin[order], begin[order] + dur, names.tolist()


def _parts(since: int, until: int, begin: Ints, end: Ints, names: list[str]) -> Iterator[tuple[str | None, int, int]]:
    """Yield the outermost operators between two times as (name, begin, end); None names a gap."""
    within = np.flatnonzero((begin < until) & (end > since))
    times = np.unique(np.clip(np.concatenate([begin[within], end[within], [since, until]]), since, until))
    last: tuple[str | None, int, int] | None = None
    for start, stop in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        running = within[(begin[within] <= start) & (end[within] >= stop)]
        name = names[running[-1]] if len(running) else None
        if last is not None and (name == last[0] or stop - start < _SHORT_NS):
            last = last[0], last[1], stop
        else:
            if last is not None:
                yield last
            last = name, start, stop
    if last is not None:
        yield last


def _nothing() -> pd.DataFrame:
    return pd.DataFrame({key: np.zeros(0, dtype=np.int64) for key in ("step", *_Link._fields)})


def _shares(links: pd.DataFrame) -> Iterator[Row]:
    """Yield the time of links by rank and kind, the longest first."""
    took = links["end_ns"] - links["start_ns"]
    whole = int(took.sum())
    sums = took.groupby([links["rank"], links["kind"]]).sum().sort_values(ascending=False, kind="stable")
    for (rank, kind), time_ns in zip(sums.index.tolist(), sums.tolist(), strict=True):
        yield {"rank": rank, "kind": kind, "dur_ns": time_ns, "share_frac": time_ns / whole}


def _kinds(links: pd.DataFrame, run: Played) -> Sequence[str]:
    """The kind of each link: compute, copy, transfer, unsplit, cpu or launch."""
    known = run.participation["call_id"][run.participation["transfer_ns"].notna()]
    split = run.calls[run.calls["call_id"].isin(known)][ACTIVITY_KEYS]
    rows = np.unique(links["row"].to_numpy(dtype=np.int64))
    ran = run.activities.iloc[rows][[*ACTIVITY_KEYS, "kind"]].assign(row=rows)
    of_row = dict(
        zip(rows.tolist(), ran["kind"].map({COMM: "unsplit", COMPUTE: "compute"}).fillna("copy"), strict=True)
    )
    of_row |= dict.fromkeys(ran[ran["kind"] == COMM].merge(split)["row"].tolist(), "transfer")
    ran_on = {_CPU: "cpu", _LAUNCH: "launch"}
    return [ran_on.get(what) or of_row[row] for what, row in zip(links["what"], links["row"], strict=True)]


def _cut(chain: pd.DataFrame, members: Sequence[Playing]) -> pd.DataFrame:
    """Links of one cycle by time, cut at the start of each step on any rank, without those outside of steps."""
    links = chain.iloc[::-1]
    programs = [member.program for member in members]
    windows = step_windows(
        np.concatenate([program.start for program in programs]),
        np.concatenate([program.end for program in programs]),
        np.concatenate([steps_of(program) for program in programs]),
        np.concatenate([_idle_since(program) for program in programs]),
    )
    parts = []
    for step, begin, end in windows:
        in_step = links[(links["end_ns"] > begin) & (links["start_ns"] < end)]
        waiter = in_step["waiter"].where(in_step["end_ns"] <= end, NONE)
        cut = in_step.assign(start_ns=in_step["start_ns"].clip(lower=begin), end_ns=in_step["end_ns"].clip(upper=end))
        parts.append(cut.assign(step=step, waiter=waiter))
    return pd.concat([_nothing(), *parts], ignore_index=True)


def _idle_since(program: RankProgram) -> Ints:
    """Since when devices waited before each activity that begins a step, NEVER for all others; of shape (n,)."""
    since = np.full(len(program), NEVER)
    steps = steps_of(program)
    for step, begun in program.idle_since.items():
        since[np.flatnonzero(steps == step)[:1]] = begun
    return since


def _chain(members: Sequence[Playing]) -> Iterator[_Link]:
    """Yield the links of one cycle, from its end to its beginning."""
    ranks = {member.program.rank: _Reasons.of(member) for member in members}
    arrived = arrivals([member.program for member in members])
    begun = min(int(member.program.start.min()) for member in members)
    end, rank = max((int(member.program.end.max()), member.program.rank) for member in members)
    node, waiter = int(np.argmax(ranks[rank].member.program.end)), NONE
    been: set[tuple[int, int]] = set()  # clocks are not exact: reasons may lead back to where they came from
    while node != NONE and end > begun and (rank, node) not in been:
        been.add((rank, node))
        reasons = ranks[rank]
        last, at = reasons.last(node, arrived)
        chain = [(rank, _RAN, node, at)]
        if last != rank:
            node = ranks[last].of_collective[int(reasons.member.program.collective[node])]
            reasons = ranks[last]
        source, ready_at = int(reasons.source[node]), int(reasons.ready_at[node])
        chain.append((last, _CPU if reasons.paced(node) else _LAUNCH, node, ready_at))
        if reasons.by_launch[node]:
            source, ended = reasons.cpu_waited(ready_at)
            chain.append((last, _CPU, node, ended))
        for on, what, of, since in chain:
            start = max(min(since, end), begun)
            if start < end:
                yield _Link(on, what, int(ranks[on].member.program.row[of]), start, end, waiter)
                end, waiter = start, NONE
            if what == _RAN and last != rank:
                waiter = rank
        rank, node = last, source
