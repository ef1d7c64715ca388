"""Copies and fills: bytes by direction, bandwidth, and time during which nothing else ran.

The name of a copy says what it is, as Kineto and the reader of Nsight's exports write it:
`Memcpy HtoD (Pinned -> Device)`, `Memset (Device)`.

Source: bandwidth is bytes / duration, which Kineto writes as `memory bandwidth (GB/s)` beside each copy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ..core import markers
from ..core.copy_names import NOT_SAID
from ..core.declaring import TableEntry, Topic, each_rank
from ..core.frames import np, pd
from ..core.intervals import spans, subtract, total
from ..core.kinds import MEMORY, is_copy
from ..core.schema import Row, Schema, grouped
from ..core.tables.columns import PARTIAL, RANK
from ..metrics.over_steps import placed

if TYPE_CHECKING:
    from ..core.arrays import Flags, Ints

COPY_TIMES = Schema("copies", "rank, device, stream, direction and memory of the host", {
    "rank": RANK,
    "device": ("string", "CUDA ordinal on that rank, or `cpu`"),
    "stream": ("int64", "stream"),
    "direction": ("string", "HtoD, DtoH, DtoD, PtoP (between GPUs), HtoH ..., or memset; NA where the name has none"),
    "memory": ("string", "of the host: pinned, pageable or managed; NA without any, and where the trace does not say"),
    "copies": ("int64", "how many"),
    "size_bytes": ("Int64", "bytes of those whose size is known; NA if none is"),
    "total_ns": ("int64", "sum of the durations"),
    "bandwidth_gb_per_s": ("Float64", "size_bytes / sum of the durations of those of known size; NA if that is 0"),
    "exposed_ns": ("int64", "time in which nothing else ran on the device: no kernel, and no copy of another row"),
    "unsized": ("int64", "copies whose size is not known"),
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
})  # fmt: skip

NO_SIZES = "the trace does not say how many bytes"
NO_DIRECTION = "the trace does not say in which direction"
NOT_PINNED = "the trace does not say whether the host's memory is pinned"

_OF_HOST = {"Pinned": "pinned", "Pageable": "pageable", "Managed": "managed", "Managed Static": "managed"}
_NEEDED = ["rank", "device", "cycle", "step", "stream", "kind", "name", "start_ns", "dur_ns", "size_bytes"]


class _Way(NamedTuple):
    """The direction of a copy, and the kind of host memory it uses; each None if not known."""

    direction: str | None
    memory: str | None
    touches_host: bool


@TableEntry(
    COPY_TIMES,
    Topic.time,
    "Copies and fills: bytes, bandwidth, and time that nothing hides.",
    "copies.md#copies-and-fills",
    command="table copies",
    after="queue_times",
    narrow=(
        "rank",
        "device",
        "stream",
        "direction",
        "memory",
        "copies",
        "size_bytes",
        "total_ns",
        "bandwidth_gb_per_s",
        "exposed_ns",
        "unsized",
        "note",
    ),
    none_found="no device copied or filled memory by itself",
    none_measured="no device copied or filled memory by itself",
    in_steps=True,
)
@each_rank
def copies(activities: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per rank, device, stream, direction and memory of the host: bytes, time, and how much is exposed.

    The longest are first; of these steps, or all without any. What ran in other steps still hides a copy.
    """
    cycles_of: dict[tuple[int, str, int, _Way], list[Row]] = {}
    for (rank, device, _), rows in grouped(placed(activities), ["rank", "device", "cycle"], _NEEDED):
        for way, stream, row in _of_device(rows, counted_steps):
            cycles_of.setdefault((rank, device, stream, way), []).append(row)
    table = COPY_TIMES.frame(_summed(*key, cycles=cycles) for key, cycles in cycles_of.items())
    order = ["rank", "device", "total_ns", "stream"]
    return table.sort_values(order, ascending=[True, True, False, True], kind="stable", ignore_index=True)


def _of_device(activities: pd.DataFrame, steps: Collection[int]) -> list[tuple[_Way, int, Row]]:
    """The copies of a device in one cycle, summed by way and stream."""
    codes, names = pd.factorize(activities["name"])
    is_memory = (activities["kind"] == MEMORY).to_numpy(dtype=bool)
    chosen = is_memory | np.array([*map(is_copy, names), False], dtype=bool)[codes]
    ways = [_way(str(name)) for name in names]
    distinct = {way: number for number, way in enumerate(dict.fromkeys(ways))}
    of_name = np.array([distinct[way] for way in ways], dtype=np.int64)
    key = np.stack((of_name[codes], activities["stream"].to_numpy()))
    starts = activities["start_ns"].to_numpy()
    ends = starts + activities["dur_ns"].to_numpy()
    size = activities["size_bytes"].to_numpy(dtype=np.int64, na_value=-1)
    counted = activities["step"].isin(steps).to_numpy(dtype=bool) if steps else np.ones(len(starts), dtype=bool)
    sums = []
    for number, stream in np.unique(key[:, chosen & counted], axis=1).T.tolist():
        here = chosen & (key[0] == number) & (key[1] == stream)
        others = spans(starts[~here], ends[~here])
        here &= counted
        exposed = total(subtract(spans(starts[here], ends[here]), others))
        way = next(way for way, code in distinct.items() if code == number)
        sums.append((way, stream, _counted(starts, ends, size, here) | {"exposed_ns": exposed}))
    return sums


def _counted(starts: Ints, ends: Ints, size: Ints, here: Flags) -> Row:
    sized = here & (size >= 0)
    return {
        "copies": int(here.sum()),
        "unsized": int((here & ~sized).sum()),
        "size_bytes": int(size[sized].sum()),
        "total_ns": int((ends - starts)[here].sum()),
        "sized_ns": int((ends - starts)[sized].sum()),
    }


def _summed(rank: int, device: str, stream: int, way: _Way, *, cycles: list[Row]) -> Row:
    sums: Row = {name: sum(cycle[name] for cycle in cycles) for name in cycles[0]}
    took_ns, size = sums.pop("sized_ns"), sums.pop("size_bytes")
    is_known = sums["unsized"] < sums["copies"]
    notes = [NO_SIZES] if sums["unsized"] else []
    notes += [NO_DIRECTION] if way.direction is None else []
    notes += [NOT_PINNED] if way.touches_host and way.memory is None else []
    return {
        "rank": rank,
        "device": device,
        "stream": stream,
        "direction": way.direction,
        "memory": way.memory,
        **sums,
        "size_bytes": size if is_known else None,
        "bandwidth_gb_per_s": size / took_ns if is_known and took_ns else None,
        "note": "; ".join(notes) or None,
    }


def _way(name: str) -> _Way:
    """Parse the name of a copy or fill."""
    parts = markers.COPY.match(name)
    if parts is None:
        return _Way("memset" if name.startswith(markers.FILL) else None, None, touches_host=False)
    places = (parts["source"], parts["target"])
    memory = next((_OF_HOST[place] for place in places if place in _OF_HOST), None)
    if parts["direction"] == NOT_SAID:
        return _Way(None, memory, touches_host=False)
    touches_host = "H" in parts["direction"]
    return _Way(parts["direction"], memory if touches_host else None, touches_host)
