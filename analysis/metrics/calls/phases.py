"""Recognise kernels that only send, and later kernels of the same name that only receive.

DeepEP's low latency dispatch and combine (internode_ll.cu: `phases`) send and receive in one kernel, unless the caller
asks for a hook (`return_recv_hook`, as vLLM and SGLang do to compute in between): then each of them is two kernels. The
first waits for no rank, the second for the tokens of all ranks; so neither is an all_to_all, whose ranks wait for each
other from their start on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ...core.kinds import in_phases, name_on_all_ranks
from ...core.schema import Row

_PHASES = ("send", "recv")
_NO_GROUP = {"process_group": None, "pg_ranks": None, "group_size": None}


def with_phases(rows: Sequence[Row]) -> list[Row]:
    """Mark kernels that only send or only receive, and clear their peer; rows are those of a rank, in order.

    With a hook a dispatch follows a dispatch. They alternate if nothing else comes between the two phases of one;
    otherwise it is not known which is which, and no collective is assigned.
    """
    marked = list(rows)
    of_device: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        if row["metadata_from"] == "name" and in_phases(row["name"]):
            of_device.setdefault(row["device"], []).append(place)
    for places in of_device.values():
        for place, phase in zip(places, _phases([rows[place]["name"] for place in places]), strict=True):
            if phase is None:
                marked[place] = rows[place] | {"collective": None, "metadata_from": "none"}
            elif phase:
                marked[place] = rows[place] | _NO_GROUP | {"collective": phase}
    return marked


def _phases(names: Iterable[str]) -> list[str | None]:
    """The phase of each kernel: empty if it sends and receives, None if not known."""
    runs = [len(list(same)) for _, same in groupby(names, key=name_on_all_ranks)]
    if max(runs) == 1:
        return [""] * len(runs)
    if len(runs) == 1 or any(length % 2 for length in runs[1:-1]):
        return [None] * sum(runs)
    # The window may have begun between the two phases of one.
    begun = runs[0] % 2
    places = [*range(begun, begun + runs[0]), *(place for length in runs[1:] for place in range(length))]
    return [_PHASES[place % 2] for place in places]
