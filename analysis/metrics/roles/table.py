"""Tables of process groups with their roles, and of ranks with their places in the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

import pandas as pd

from ...core.schema import Row, grouped, records, text_codes
from .behaviour import LEAST_BYTES, Inferred, StepOf, inferred_role
from .names import COORDINATES, DIMENSIONS, WORLD, described_role, group_in_words

_SINGLE = ("tp", "cp", "sp", "pp", "dp", "dp_shard", "dp_replicate", "ep", "etp", "edp")
"""In the order in which the place of a rank names them, as people do: `tp 0, pp 3, dp 1`."""
_APART = frozenset({"tp", "cp", "sp", "pp", "dp"})
"""Two ranks differ in one of these only if they are in one group of it: experts are spread over some of the others."""

_OF_GRADIENTS = frozenset({"dp", "dp_shard", "dp_replicate"})

_GRID = ("tp", "cp", "pp", "dp", "dp_shard", "dp_replicate")
"""A rank's places in these do not depend on each other, but for those of data parallelism."""

_STATISTICS_BYTES = 1 << 16
"""Sums and squares of 8,192 channels in float32: what a batch norm over several ranks may exchange."""

_SAME_SUM, _MOST_TIMES = 0.01, 16

_MOST_ASKED = 16
"""Of groups of the same size and stride: what these do, the others do, too."""


class _Group(NamedTuple):
    name: str | None
    ranks: tuple[int, ...]


def group_roles(process_groups: pd.DataFrame, calls: pd.DataFrame, step_of: StepOf) -> list[Row]:
    """A row per process group: what it is for, and how that is known; those with most calls first.

    `process_groups` and `calls` are the tables of a run; `step_of` says when a step ran.
    """
    found: dict[_Group, Row] = {}
    alone: dict[_Group, str] = {}
    for row in records(process_groups.drop_duplicates(["process_group", "description", "pg_ranks"])):
        found.setdefault(_Group(row["process_group"], _ranks(row["pg_ranks"])), _row(row))
    asked: dict[tuple[int, int], int] = defaultdict(int)
    for name, ranks, own in _by_group(calls):
        row = found.setdefault(_Group(name, _ranks(ranks)), _row({"process_group": name, "pg_ranks": ranks}))
        row["calls"] = len(own)
        if row["role"] not in (None, WORLD):
            continue
        asked[_shape(row)] += 1
        if asked[_shape(row)] <= _MOST_ASKED:
            told = inferred_role(own, _ranks(row["pg_ranks"]), step_of)
            _infer(row, told)
            if told is not None and told.alone is not None:
                alone[_group(row)] = told.alone
        else:
            row["because"] = "one of many alike, of which some were looked at"
    rows = list(found.values())
    _only_whole_worlds(rows)
    reduced = _reduced(calls)
    _sharded_alone(rows, alone, reduced)
    _tensor_of_activations(rows, calls, reduced)
    _like_others(rows)
    _tensor_beside_gradients(rows)
    _without_contradictions(rows)
    for row in rows:
        row["group"] = group_in_words(row["role"], list(_ranks(row["pg_ranks"])), row["process_group"])
    return sorted(rows, key=lambda row: -row["calls"])


def with_roles(table: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """The table, which has process groups, with the column `role`: of `found`, the table `groups`, but not `world`."""
    known = found[found["role"].notna() & (found["role"] != WORLD)]
    roles = dict(zip(zip(known["process_group"], known["pg_ranks"], strict=True), known["role"], strict=True))
    of_rows = [roles.get(group) for group in zip(table["process_group"], table["pg_ranks"], strict=True)]
    return table.assign(role=pd.array(of_rows, dtype="string"))


def windows_of_steps(began: Mapping[tuple[int, int], tuple[Mapping[int, int], int]]) -> StepOf:
    """When a step began on a device, and how long it took; `began` has starts of each rank and cycle, and its end."""

    def step_of(rank: int, cycle: int, step: int) -> tuple[int, int] | None:
        starts, end_ns = began.get((rank, cycle), ({}, 0))
        if step not in starts:
            return None
        until = min((start for number, start in starts.items() if number > step), default=end_ns)
        return starts[step], until - starts[step]

    return step_of


def _by_group(calls: pd.DataFrame) -> Iterator[tuple[str, str | None, pd.DataFrame]]:
    """Yield name, ranks and calls of each process group that has a name."""
    named = calls[calls["process_group"].notna()]
    (names, of_name), (lists, of_list) = text_codes(named["process_group"]), text_codes(named["pg_ranks"])
    numbered = named.assign(name_number=names, list_number=lists)
    for (name, ranks), own in grouped(numbered, ["name_number", "list_number"]):
        yield of_name[name], of_list[ranks] if ranks >= 0 else None, own


def _group(row: Row) -> _Group:
    return _Group(row["process_group"], _ranks(row["pg_ranks"]))


def _row(known: Row) -> Row:
    ranks = _ranks(known["pg_ranks"])
    role = described_role(known.get("description"))
    return {
        "process_group": known["process_group"],
        "description": known.get("description"),
        "pg_ranks": known["pg_ranks"],
        "group_size": len(ranks) or None,
        "role": role,
        "role_from": None if role is None else "description",
        "because": None,
        "calls": 0,
    }


def _only_whole_worlds(rows: Sequence[Row]) -> None:
    """Take `world` from groups that have not all ranks of the job, whatever their descriptions say."""
    everyone = {rank for row in rows for rank in _ranks(row["pg_ranks"])}
    for row in rows:
        if row["role"] == WORLD and not everyone.issubset(_ranks(row["pg_ranks"])):
            row["role"] = row["role_from"] = None
            row["because"] = row["because"] or "described as all ranks, but other groups have more"


def _infer(row: Row, found: Inferred | None) -> None:
    """What the calls say, if they say anything. That a group has all ranks says less than what it is for."""
    if found is None:
        return
    row["because"] = found.because
    if found.role is not None:
        row["role"], row["role_from"] = found.role, "calls"


def _like_others(rows: Iterable[Row]) -> None:
    """Groups of the same size and stride, with calls, that do not tell are what the others are, if those agree.

    Groups of one dimension have no rank in common. Where a pipeline begins, activations are reduced from the beginning
    of a step on; later stages begin with waiting.
    """
    known: dict[tuple[int, int], list[Row]] = defaultdict(list)
    rows = [row for row in rows if row["calls"] and (row["group_size"] or 0) > 1]
    for row in rows:
        if row["role"] not in (None, WORLD):
            known[_shape(row)].append(row)
    for row in rows:
        alike, own = known[_shape(row)], {*_ranks(row["pg_ranks"])}
        roles = {other["role"] for other in alike}
        apart = all(own.isdisjoint(_ranks(other["pg_ranks"])) for other in alike)
        if row["role"] is None and row["because"] is not None and len(roles) == 1 and apart and _stride(row):
            row["role"], row["role_from"], row["because"] = min(roles), "calls", "ranks as far apart as in such groups"


def _tensor_beside_gradients(rows: Iterable[Row]) -> None:
    """Take back `tp` by calls of ranks whose gradients no other group reduces.

    Gradients that are reduced in each of several micro-batches look like activations.
    """
    reduced = {
        rank
        for row in rows
        if row["calls"] and row["role"] is not None and row["role"].split("-")[0] in _OF_GRADIENTS
        for rank in _ranks(row["pg_ranks"])
    }
    for row in rows:
        if row["role"] == "tp" and row["role_from"] == "calls" and not reduced.intersection(_ranks(row["pg_ranks"])):
            _take_back(row, "all_reduces of equal size: of activations, or of gradients of micro-batches")


def _reduced(calls: pd.DataFrame) -> dict[_Group, dict[int, float]]:
    """Group -> size in bytes -> how often each of its ranks reduced that much; without flags, losses and norms."""
    own = calls[calls["collective"].isin(["all_reduce", "reduce_scatter"]) & (calls["size_bytes"] >= LEAST_BYTES)]
    counts = own.groupby(["process_group", "pg_ranks", "size_bytes"], dropna=False)["rank"].agg(["size", "nunique"])
    found: dict[_Group, dict[int, float]] = defaultdict(dict)
    for (name, ranks, size_bytes), count, of_ranks in counts.itertuples():
        found[_Group(name, _ranks(ranks))][int(size_bytes)] = count / of_ranks
    return found


def _sharded_alone(rows: Iterable[Row], alone: Mapping[_Group, str], reduced: Mapping[_Group, object]) -> None:
    """Give groups of all ranks the roles that they have if no other group reduces gradients of their ranks.

    What context parallelism gathers looks like parameters of equal layers, but its ranks reduce their gradients, too;
    of part of the ranks that may be in steps which are not traced.
    """
    rows = list(rows)
    everyone = {rank for row in rows for rank in _ranks(row["pg_ranks"])}
    for row in rows:
        own = _group(row)
        if row["role"] in (None, WORLD) and own in alone and everyone == {*own.ranks}:
            others = [other for other in reduced if other != own and len({*other.ranks} & {*own.ranks}) > 1]
            if not others:
                row["role"], row["role_from"] = alone[own], "calls"


def _tensor_of_activations(
    rows: Iterable[Row], calls: pd.DataFrame, reduced: Mapping[_Group, Mapping[int, float]]
) -> None:
    """Take back `tp` by calls where the sizes may be of something else than activations.

    Stages of a pipeline hand on activations of the same size, which proves it. Otherwise, gradients that are reduced
    inside a host and then across hosts have the sizes, or the sum, of what other groups of these ranks reduce, and
    statistics of a batch norm are small.
    """
    tensor = [row for row in rows if row["role"] == "tp" and row["role_from"] == "calls"]
    if not tensor:
        return
    handed_on = set(calls["size_bytes"][calls["collective"].isin(["send", "recv"])].dropna().astype("int64"))
    for row in tensor:
        own = reduced.get(_group(row), {})
        if handed_on & set(own):
            continue
        beside = [
            sizes
            for other, sizes in reduced.items()
            if other != _group(row) and {*other.ranks} & {*_ranks(row["pg_ranks"])}
        ]
        if any(_as_much(own, sizes) for sizes in beside):
            because = "another group of these ranks reduces as much: of activations, or of gradients level by level"
        elif max(own, default=0) <= _STATISTICS_BYTES:
            because = "small all_reduces of equal size: of activations, or of statistics of a batch norm"
        else:
            continue
        _take_back(row, because)


def _as_much(own: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether most calls have sizes of the other group, or one reduces the same in sum, or some times that.

    Gradients of micro-batches are reduced inside a host each time, and across hosts once, perhaps as another type.
    """
    shared = sum(count for size_bytes, count in own.items() if size_bytes in other)
    sums = sorted(sum(size_bytes * count for size_bytes, count in sizes.items()) for sizes in (own, other))
    times = sums[1] / max(sums[0], 1.0)
    same = times <= _MOST_TIMES and abs(times - round(times)) <= _SAME_SUM
    return 2 * shared >= sum(own.values()) or same


def _take_back(row: Row, because: str) -> None:
    """Leave the row with the role that its description names, if any."""
    row["role"] = described_role(row["description"])
    row["role_from"] = None if row["role"] is None else "description"
    row["because"] = because


def _shape(row: Row) -> tuple[int, int]:
    return row["group_size"], _stride(row)


def _stride(row: Row) -> int:
    """How far its ranks are apart; 0 if that differs."""
    apart = {b - a for a, b in pairwise(_ranks(row["pg_ranks"]))}
    return apart.pop() if len(apart) == 1 else 0


def _without_contradictions(rows: Iterable[Row]) -> None:
    """Groups of two dimensions have one rank in common at most; roles by calls that break this are taken back."""
    of_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["role"] in _APART and (row["group_size"] or 0) > 1:
            for rank in _ranks(row["pg_ranks"]):
                of_rank[rank].append(row)
    doubtful: list[Row] = []
    for own in of_rank.values():
        for one, other in combinations(own, 2):
            if one["role"] == other["role"] or not {one["role"], other["role"]} <= _APART:
                continue
            if len({*_ranks(one["pg_ranks"])} & {*_ranks(other["pg_ranks"])}) < 2:
                continue
            reducing, ring = (one, other) if one["role"] == "dp" else (other, one)
            if _reduces_over_ring(reducing, ring):
                reducing["role"] = "dp-cp"
            else:
                doubtful += [row for row in (one, other) if row["role_from"] == "calls"]
    for row in doubtful:
        row["role"] = row["role_from"] = None
        row["because"] = "what its calls tell is ruled out by the role of a group that has two of its ranks"


def _reduces_over_ring(reducing: Row, ring: Row) -> bool:
    """Whether gradients are reduced over all ranks of a context-parallel group, which have the same parameters."""
    return (reducing["role"], reducing["role_from"], ring["role"]) == ("dp", "calls", "cp") and {
        *_ranks(reducing["pg_ranks"])
    } >= {*_ranks(ring["pg_ranks"])}


def rank_places(ranks: Iterable[int], found: pd.DataFrame) -> list[Row]:
    """A row per rank: its number in each dimension, counted from 0 along its group of that role.

    `found` is the table `groups`. A dimension without groups is NA for all ranks; where a rank has two groups of one
    role, the larger one counts, and if both have different ranks, neither does.
    """
    along = _coordinates(found)
    rows: list[Row] = []
    for rank in sorted(ranks):
        known = {role: along[role][rank] for role in _SINGLE if rank in along[role]}
        row: Row = {"rank": rank, **{role: known.get(role) for role in COORDINATES}}
        row["dp"] = _data_place(known, found, rank)
        row["place"] = ", ".join(f"{role} {number}" for role, number in known.items()) if len(known) > 1 else None
        rows.append(row)
    return rows


def _data_place(known: Mapping[str, int], found: pd.DataFrame, rank: int) -> int | None:
    """The number in data parallelism; of hybrid sharding, replicas one after another."""
    if "dp" in known or not {"dp_shard", "dp_replicate"} & set(known):
        return known.get("dp")
    if "dp_replicate" not in known:
        return known["dp_shard"]
    if "dp_shard" not in known:
        return known["dp_replicate"]
    shards = [ranks for ranks in map(_ranks, found["pg_ranks"][found["role"] == "dp_shard"]) if rank in ranks]
    return known["dp_replicate"] * max(map(len, shards)) + known["dp_shard"]


def _coordinates(found: pd.DataFrame) -> dict[str, dict[int, int]]:
    """Role -> rank -> its place in its group of that role.

    Ranks of one tensor-parallel group, say, have the same place in data parallelism. Where they do not, ranks were not
    laid out in rows, and the order in the groups says nothing of places: that dimension has none.
    """
    of_role: dict[str, dict[int, tuple[int, ...]]] = {role: {} for role in DIMENSIONS}
    doubtful: set[tuple[str, int]] = set()
    for role, text in zip(found["role"], found["pg_ranks"], strict=True):
        if role not in of_role:
            continue
        group = _ranks(text)
        for rank in group:
            had = of_role[role].get(rank, ())
            if len(group) > len(had):
                of_role[role][rank] = group
                doubtful.discard((role, rank))
            elif len(group) == len(had) and group != had:
                doubtful.add((role, rank))
    along = {
        role: {rank: group.index(rank) for rank, group in own.items() if (role, rank) not in doubtful}
        for role, own in of_role.items()
    }
    crooked = {
        role
        for role, across in permutations(_GRID, 2)
        if not {role, across} <= _OF_GRADIENTS
        for group in set(of_role[across].values())
        if len({along[role][rank] for rank in group if rank in along[role]}) > 1
    }
    return {role: {} if role in crooked else own for role, own in along.items()}


@lru_cache(maxsize=1 << 12)
def _ranks(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split())) if isinstance(text, str) else ()
