"""What holds most of the time by which some steps are longer than others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.schema import bare, grouped, records
from .holders import Ranges, Stretches, holders
from .idle import DeviceGaps
from .largest_gaps import HeldBy, functions_in_idle, held_idle, names_that_say_nothing


class Longer(NamedTuple):
    """What says why some `long` steps are longer than `usual` ones: activities, gaps with their CPUs, and `idle_steps`.

    All ns are means over the long steps of all devices, without as much of the usual ones.
    """

    activities: pd.DataFrame
    gaps: Sequence[DeviceGaps]
    idle_steps: pd.DataFrame

    def of(self, ranks: Collection[int]) -> Longer:
        """The same of these ranks alone."""
        own = [table[table["rank"].isin(list(ranks))] for table in (self.activities, self.idle_steps)]
        return Longer(own[0], [each for each in self.gaps if each.rank in ranks], own[1])

    def idle_ns(self, part: str, long: Collection[int], usual: Collection[int]) -> float:
        """How much longer a part of idle time is, a column of `idle_steps`; 0 where it is not known."""
        means = [self.idle_steps.loc[self.idle_steps["step"].isin(list(steps)), part].mean() for steps in (long, usual)]
        return 0.0 if any(pd.isna(mean) for mean in means) else float(means[0] - means[1])

    def idle_in(self, long: Collection[int], usual: Collection[int]) -> HeldBy | None:
        """The operator or annotation in which CPUs were longer while devices idled; None if there is none."""
        weighed = [
            each._replace(weight=np.full(len(each.start_ns), weight))
            for steps, weight in _weights(long, usual)
            for device in held_idle(self.gaps, steps)
            for each in device.stretches
        ]
        return self._most(weighed, usual)

    def functions(self, long: Collection[int]) -> dict[str, HeldBy]:
        """The function of the user that holds most of a part of idle time in these steps, by part."""
        return functions_in_idle(self.gaps, long, self.devices * len(long))

    def work(self, kind: str, long: Collection[int], usual: Collection[int]) -> tuple[HeldBy | None, HeldBy | None]:
        """The kernel or copy of this kind that runs longer, and the annotation in which what runs longer was launched.

        Both are None if there is none.
        """
        weights = {step: weight for steps, weight in _weights(long, usual) for step in steps}
        own = self.activities[(self.activities["kind"] == kind) & self.activities["step"].isin(list(weights))]
        weighed = own["dur_ns"].to_numpy() * own["step"].map(weights).to_numpy(dtype=np.float64)
        by_name = pd.Series(weighed).groupby(own["name"].astype("string").to_numpy()).sum().sort_values()
        most = HeldBy(str(by_name.index[-1]), float(by_name.iloc[-1]) / self.devices) if len(by_name) else None
        return most, self._most(_launches(own.assign(weight=weighed), self.gaps), usual)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.activities[["rank", "device"]].drop_duplicates())

    def _most(self, weighed: Iterable[Stretches], usual: Collection[int]) -> HeldBy | None:
        """What holds most of these stretches, but nothing that is around all that happens in usual steps."""
        hidden = names_that_say_nothing(list(held_idle(self.gaps, usual)))
        named = [each._replace(ranges=each.ranges.without(hidden.__contains__)) for each in weighed]
        for most in records(holders(named)) if named else ():
            within = most["outer"] if most["outer"] != most["name"] else None
            return HeldBy(most["name"], most["ns"] / self.devices, within)
        return None


def _launches(weighed: pd.DataFrame, gaps: Sequence[DeviceGaps]) -> Iterator[Stretches]:
    """Yield the beginning of the call that launched each activity, with its weight, by thread."""
    hosts = {(each.rank, each.device, each.cycle): each.host for each in gaps}
    for device, rows in grouped(weighed, ["rank", "device", "cycle"], ["correlation", "weight"]):
        host = hosts[device]
        if host is None:
            continue
        call = host.launch_of(rows["correlation"].to_numpy(dtype=np.int64, na_value=-1))
        weight, call = rows["weight"].to_numpy()[call >= 0], call[call >= 0]
        for thread in np.unique(host.calls.thread[call]).tolist():
            here = host.calls.thread[call] == thread
            start = host.calls.start_ns[call[here]]
            order = np.argsort(start, kind="stable")
            ranges = Ranges.of(host.user_ranges[bare(host.user_ranges["thread"]) == thread])
            moments = Stretches.alike(ranges, start[order], start[order] + 1)
            yield moments._replace(weight=weight[here][order])


def _weights(long: Collection[int], usual: Collection[int]) -> list[tuple[Collection[int], float]]:
    """How much each of these steps counts, so that they add up to a mean of the long ones without a usual one."""
    return [(long, 1 / len(long)), (usual, -1 / len(usual))]
