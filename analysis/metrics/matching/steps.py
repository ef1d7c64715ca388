"""The rung of steps: the k-th call of a process group in step N is the same one on all its ranks.

All ranks run the same program, so this needs no clock, and not even the kernel of every call: a record that it was
issued is enough. It fails where a trace lacks records, or where a rank numbers its steps differently. So a rank is
trusted for a call only if all that it issued in the step up to there agrees with what most ranks issued, and only as
long as times do not contradict (`doubts`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Ints
from ..timelines.entries import CALL_KINDS
from .state import BY_STEP, Findings, State, codes, group_codes, kind_codes

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class _Issued(NamedTuple):
    """What ranks issued in steps, sorted by group, step, process and turn; all of shape (issued,).

    `row` is the position in the table of calls, -1 for what was issued and did not run. A process is a rank in one
    profiling cycle, `turn` the place among its calls of the group in the step, and `signature` a code of kind, dtype
    and size.
    """

    row: Ints
    group: Ints
    step: Ints
    process: Ints
    rank: Ints
    turn: Ints
    signature: Ints


def by_step(state: State, calls: pd.DataFrame, pending: pd.DataFrame) -> Findings:
    """Match the calls that are undecided, and whose step, turn and process group are known.

    `calls` and `pending` are the tables of these names.
    """
    issued = _issued(calls, pending)
    if not len(issued.row):
        return
    first = np.flatnonzero(np.concatenate([[True], _changes(issued.group, issued.step, issued.process)]))
    segment = np.repeat(np.arange(len(first)), np.diff([*first, len(issued.row)]))
    # A rank that issued less than others lost records: from there on, its k-th call is not the k-th of the others.
    trusted = _complete(issued, first)[segment]
    place = _number(issued.group, issued.step, issued.turn)
    number = _agreed(place, _so_far(issued, first, segment), trusted)
    # What was issued and did not run counts for the order, but there is no call to match.
    shown = (number >= 0) & (issued.row >= 0)
    ranks = pd.Series(issued.rank[shown]).groupby(number[shown]).transform("nunique").to_numpy()
    rows, kept = issued.row[shown][ranks > 1], number[shown][ranks > 1]
    undecided = state.collective[rows] < 0
    yield state.together(rows[undecided], pd.factorize(kept[undecided])[0], BY_STEP)


def _issued(calls: pd.DataFrame, pending: pd.DataFrame) -> _Issued:
    """All calls whose step, turn and process group are known, whether they ran or not."""
    both = calls[[*_COLUMNS, "name"]].assign(row=np.arange(len(calls)))
    if len(pending):
        unnamed = pd.Series(pd.NA, pending.index, dtype=both["name"].dtype)
        both = pd.concat([both, pending[_COLUMNS].assign(row=-1, name=unnamed)], ignore_index=True)
    known = both["turn"].notna() & both["step"].notna() & both["collective"].notna()
    both = both[known.to_numpy()]
    both = both.assign(group=group_codes(both), kind=kind_codes(both))
    # Groups that share a name, and whose ranks are not known, cannot be told apart.
    ranks = both.groupby("group")["rank"].transform("nunique")
    named = both["process_group"].notna()
    both = both[((ranks <= both["group_size"].fillna(ranks)) | ~named).to_numpy(dtype=bool)]
    size = np.where(both["kind"] == CALL_KINDS.index("all_to_all"), -1, codes(both["size_bytes"]))
    signature = (both["kind"].to_numpy(), pd.factorize(both["dtype"])[0], size)
    ordered = both.assign(
        process=both.groupby(["rank", "cycle"], sort=True).ngroup(),
        signature=_number(*signature),
    ).sort_values(["group", "step", "process", "turn"], kind="stable")
    return _Issued(*(codes(ordered[name]) for name in _Issued._fields))


_COLUMNS = [
    "rank", "cycle", "process_group", "pg_ranks", "group_size", "collective", "root", "dtype", "size_bytes", "step",
    "turn",
]  # fmt: skip


def _number(*columns: Ints) -> Ints:
    """A number from 0 on for each distinct combination of values; columns and result are of one length."""
    number: Ints = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes_of_column, values = pd.factorize(column)
        number = pd.factorize(number * len(values) + codes_of_column)[0]
    return number


def _changes(*columns: Ints) -> Flags:
    """Whether any column changes from each row to the next."""
    result: Flags = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return result


def _complete(issued: _Issued, first: Ints) -> Flags:
    """Whether each process issued as much as any other in each step of a group, or its last step was cut off.

    A rank that has the step in two cycles is in none of them complete: its k-th calls would be two.
    """
    count = np.diff([*first, len(issued.row)])
    group_step = _number(issued.group[first], issued.step[first])
    most = np.zeros(group_step.max() + 1, dtype=np.int64)
    np.maximum.at(most, group_step, count)
    last = np.full(issued.process.max() + 1, -1)
    np.maximum.at(last, issued.process, issued.step)
    cut = issued.step[first] == last[issued.process[first]]
    twice = pd.DataFrame({"at": group_step, "rank": issued.rank[first]}).duplicated(keep=False).to_numpy()
    complete: Flags = ((count == most[group_step]) | cut) & ~twice
    return complete


def _so_far(issued: _Issued, first: Ints, segment: Ints) -> Ints:
    """A number for what a process has issued in the group in the step up to each row: kinds, dtypes, sizes."""
    # A sum of hashes that depend on the turn: equal if the same calls were issued in the same order.
    with np.errstate(over="ignore"):
        mixed = (issued.signature.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(29)
        mixed *= (issued.turn.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER | np.uint64(1)
        mixed ^= mixed >> np.uint64(32)
        total = np.cumsum(mixed, dtype=np.uint64)
        of_segment = total - (total[first] - mixed[first])[segment]
    numbers: Ints = np.unique(of_segment, return_inverse=True)[1]
    return numbers


def _agreed(place: Ints, so_far: Ints, trusted: Flags) -> Ints:
    """The number of the collective of each row; -1 if it is not trusted, or most ranks had issued something else.

    `place` numbers group, step and turn; `so_far` what the process had issued up to there.
    """
    table = pd.DataFrame({"place": place, "so_far": so_far})[trusted]
    votes = table.groupby(["place", "so_far"], sort=False).size().rename("votes").reset_index()
    votes = votes.sort_values("votes", ascending=False, kind="stable")
    best = votes.drop_duplicates("place")
    # Where as many ranks issued something else, nothing says who is right.
    tied = votes.merge(best, on=["place", "votes"])["place"].value_counts()
    best = best[~best["place"].isin(tied.index[tied > 1])]
    chosen = best.set_index("place")["so_far"]
    wanted = pd.Series(place).map(chosen)
    result = np.where(trusted & (wanted == pd.Series(so_far)).to_numpy(dtype=bool), place, -1)
    return np.asarray(result, dtype=np.int64)
