"""Find groups, hosts and pairs of hosts whose transfers are slower than those of similar ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log1p

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.schema import grouped
from ..metrics.latency import Place, kinds_alike, spread
from .links import Links

LEAST_SLOWER_FRAC = 0.15
"""Links differ by less without any fault: by their place on a board, or by what else runs."""
_LEAST_CALLS = 4
SURE = 4.0
"""So many standard errors above the others is no chance, however many groups are compared."""
_DEVIATION = 1.4826
"""Standard deviation of normal values, as a multiple of the median of their distances."""
_ALIKE = 1.25
"""Sizes within this factor are compared by the time that a byte takes."""

_Ranks = tuple[int, ...]


@dataclass(frozen=True)
class SlowLinks:
    """Links over which the same transfer takes `slower_frac` longer than over similar ones, +/- `noise_frac`.

    `numbers` are the collectives that ran over them; of each, `times` is what it took as a multiple of what others
    like it do. `others` are the groups that it was compared with.
    """

    label: str
    ranks: _Ranks
    slower_frac: float
    noise_frac: float
    numbers: frozenset[int]
    times: Mapping[int, float]
    others: tuple[_Ranks, ...]


@dataclass(frozen=True)
class _Compared:
    """Calls of one kind and similar size among `ranks`, compared with other groups by logarithm.

    `calls` are the fewest that one of them made; `alike` are all groups that it is one of.
    """

    ranks: _Ranks
    numbers: tuple[int, ...]
    above: float
    error: float
    calls: int
    alike: tuple[_Ranks, ...]


def slow_groups(links: Links) -> list[SlowLinks]:
    """The slow links, slowest first; empty if similar links are equally fast or cannot be compared.

    Only like is compared with like: the same kind of collective over as many ranks, equally spread over hosts, and of
    about one size. A group that spans hosts is not slow because those inside a host are faster. The others must agree:
    one is slow if it takes 15 % longer than most of them, and by more than four standard errors, to which the spread of
    the others belongs.
    """
    by_ranks: dict[_Ranks, list[_Compared]] = {}
    for each in _comparisons(links):
        by_ranks.setdefault(each.ranks, []).append(each)
    slow = {ranks: against for ranks, against in by_ranks.items() if _is_beyond_noise(*_above_others(against))}
    return sorted(_merged(slow, by_ranks, links.hosts), key=lambda each: -each.slower_frac)


def against_others(links: Links, ranks: Sequence[int]) -> SlowLinks | None:
    """Compare the groups within these ranks with similar ones, slow or not; None without similar ones."""
    compared = [each for each in _comparisons(links, set(ranks)) if set(each.ranks) <= set(ranks)]
    known = tuple(sorted({rank for each in compared for rank in each.ranks}))
    return _slow(_label(known, links.hosts), known, compared) if compared else None


def _comparisons(links: Links, apart: set[int] | None = None) -> Iterator[_Compared]:
    """Yield each group against all similar ones; if `apart` is given, groups within it against the rest."""
    alike: dict[tuple[str, tuple[int, ...]], list[tuple[Place, pd.DataFrame]]] = {}
    for place, rows in kinds_alike(links.collectives):
        alike.setdefault((place.collective, spread(place.ranks, links.hosts)), []).append((place, rows))
    for groups in alike.values():
        for by_ranks in _of_about_one_size(groups):
            yield from _compared(by_ranks, apart)


def _of_about_one_size(groups: Sequence[tuple[Place, pd.DataFrame]]) -> Iterator[dict[_Ranks, pd.DataFrame]]:
    """Yield the calls of all groups by ranks, for each run of similar sizes."""
    every = pd.concat([rows.assign(of=number) for number, (_, rows) in enumerate(groups)])
    sizes = sorted(every["size_bytes"].unique().tolist())
    first, starts = 0, [0]
    for number, (_, size) in enumerate(pairwise(sizes), 1):
        if size > sizes[first] * _ALIKE:
            first = number
            starts.append(number)
    for start, stop in pairwise([*starts, len(sizes)]):
        together = every[every["size_bytes"].between(sizes[start], sizes[stop - 1])]
        yield {groups[number][0].ranks: rows for (number,), rows in grouped(together, ["of"])}


def _compared(by_ranks: Mapping[_Ranks, pd.DataFrame], apart: set[int] | None) -> Iterator[_Compared]:
    """Yield each of these groups, or each within `apart`, against the others."""
    every = tuple(by_ranks)
    is_apart = np.array([apart is not None and set(ranks) <= apart for ranks in every])
    logs = [_logs(rows) for rows in by_ranks.values()]
    medians, calls = np.array([np.median(each) for each in logs]), np.array([len(each) for each in logs])
    within = sum(float(((each - median) ** 2).sum()) for each, median in zip(logs, medians, strict=True))
    # Of the median of one call; that of several is less by the root of their number.
    noise = float(np.sqrt(within / max(calls.sum() - len(logs), 1) * np.pi / 2))
    for number in range(len(every)) if apart is None else np.flatnonzero(is_apart).tolist():
        others = ~is_apart
        others[number] = False
        if not others.any():
            continue
        theirs, fewest = medians[others], int(calls[others].min())
        # The lower median: of two others, one may be slow as well.
        usual = float(np.sort(theirs)[(len(theirs) - 1) // 2])
        between = float(np.median(np.abs(theirs - usual)) * _DEVIATION) if len(theirs) > 2 else 0.0
        error = (noise**2 / calls[number] + noise**2 / fewest + between**2) ** 0.5
        numbers = tuple(by_ranks[every[number]]["collective_id"].astype(int))
        least = min(int(calls[number]), fewest)
        yield _Compared(every[number], numbers, float(medians[number]) - usual, error, least, every)


def _logs(rows: pd.DataFrame) -> NDArray[np.float64]:
    times, sizes = (rows[column].to_numpy(np.float64) for column in ("transfer_ns", "size_bytes"))
    logs: NDArray[np.float64] = np.log(times / sizes)
    return logs


def _above_others(compared: Sequence[_Compared]) -> tuple[float, float]:
    """How far these lie above the others in logarithm, and the standard error, infinite for few calls.

    It is the mean over the comparisons, as often as each was called.
    """
    calls = np.array([len(each.numbers) for each in compared], dtype=np.float64)
    weights = calls / calls.sum()
    above = float(weights @ [each.above for each in compared])
    error = float(np.sqrt((weights**2) @ [each.error**2 for each in compared]))
    return above, error if max(each.calls for each in compared) >= _LEAST_CALLS else np.inf


def _is_beyond_noise(above: float, error: float) -> bool:
    return above >= max(log1p(LEAST_SLOWER_FRAC), SURE * error)


def _slow(label: str, ranks: _Ranks, compared: Sequence[_Compared]) -> SlowLinks:
    above, error = _above_others(compared)
    others = dict.fromkeys(other for each in compared for other in each.alike)
    return SlowLinks(
        label,
        ranks,
        float(np.expm1(above)),
        float(np.expm1(SURE * error)),
        frozenset(number for each in compared for number in each.numbers),
        {number: float(np.exp(each.above)) for each in compared for number in each.numbers},
        tuple(other for other in others if not set(other) <= set(ranks)),
    )


def _merged(
    slow: Collection[_Ranks], compared: Mapping[_Ranks, list[_Compared]], hosts: Mapping[int, str | None]
) -> Iterator[SlowLinks]:
    """Merge slow groups that share links: all of a host to others, inside a host, or between two hosts."""
    left = dict.fromkeys(slow)
    for label, groups in _together(compared, hosts):
        if len(groups) > 1 and all(ranks in left for ranks in groups):
            of = [each for ranks in groups for each in compared[ranks]]
            yield _slow(label, tuple(sorted({rank for ranks in groups for rank in ranks})), of)
            for ranks in groups:
                del left[ranks]
    yield from (_slow(_label(ranks, hosts), ranks, compared[ranks]) for ranks in left)


def _together(groups: Collection[_Ranks], hosts: Mapping[int, str | None]) -> Iterator[tuple[str, list[_Ranks]]]:
    """Yield groups that share links, with a name: of one host to others, between hosts, inside one."""
    where = {ranks: frozenset(str(hosts[rank]) for rank in ranks if hosts.get(rank)) for ranks in groups}
    for host in sorted(set().union(*where.values())):
        there = [ranks for ranks in groups if host in where[ranks] and len(where[ranks]) > 1]
        if len({where[ranks] for ranks in there}) > 1:
            yield f"links of {host} to other hosts", there
    for names in dict.fromkeys(where.values()):
        there = [ranks for ranks in groups if where[ranks] == names]
        if names:
            yield f"links {'between' if len(names) > 1 else 'inside'} {' and '.join(sorted(names))}", there


def _label(ranks: _Ranks, hosts: Mapping[int, str | None]) -> str:
    """A name such as "links of ranks 4-7 (node1)"."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    said = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
    names = sorted({str(hosts[rank]) for rank in ranks if hosts.get(rank)})
    return f"links of ranks {said}" + (f" ({', '.join(names)})" if names and len(names) < 3 else "")
