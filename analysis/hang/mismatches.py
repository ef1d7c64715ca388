"""Find collectives that ranks of a group called differently under one number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..formats.flight_recorder.dump import Dump
from .groups import JobGroup


@dataclass(frozen=True)
class Mismatch:
    """What ranks called as number `seq` of their group: text such as `all_reduce float32 8 elements`, and ranks."""

    seq: int
    called: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks that did not call what most did; all of them if there is no majority."""
        most = max(len(ranks) for _, ranks in self.called)
        usual = [what for what, ranks in self.called if len(ranks) == most]
        return tuple(sorted(r for what, ranks in self.called if len(usual) > 1 or what not in usual for r in ranks))


def first_mismatches(groups: Sequence[JobGroup], dumps: Mapping[int, Dump]) -> dict[int, Mismatch]:
    """The first number in each group under which ranks called different things, by the group's place."""
    import numpy as np

    texts: dict[str, int] = {}
    maps = {
        rank: np.array([texts.setdefault(what, len(texts)) for what in dump.whats], dtype=np.int64)
        for rank, dump in dumps.items()
    }
    first: dict[int, Mismatch] = {}
    for place, group in enumerate(groups):
        logs = {rank: log for rank, log in group.logs.items() if log.seqs}
        if len(logs) < 2:
            continue
        seqs = np.concatenate([np.frombuffer(log.seqs, dtype=np.int64) for log in logs.values()])
        whats = np.concatenate([maps[r][np.frombuffer(log.whats, dtype=np.int64)] for r, log in logs.items()])
        least = seqs.min()
        pairs = np.unique((seqs - least) * len(texts) + whats) // len(texts)
        twice = pairs[1:][pairs[1:] == pairs[:-1]]
        if len(twice):
            first[place] = _mismatch(int(twice[0] + least), group, dumps)
    return first


def _mismatch(seq: int, group: JobGroup, dumps: Mapping[int, Dump]) -> Mismatch:
    called: dict[str, list[int]] = defaultdict(list)
    for rank, log in sorted(group.logs.items()):
        if seq in log.seqs:
            called[dumps[rank].whats[log.whats[log.seqs.index(seq)]]].append(rank)
    ordered = sorted(called.items(), key=lambda one: (-len(one[1]), one[1]))
    return Mismatch(seq, tuple((what, tuple(ranks)) for what, ranks in ordered))
