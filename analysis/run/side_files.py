"""Read the side files of a run: plausible facts about its ranks beside their traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.wording import ranges_of
from ...contract.limits import RANK_LIMIT
from ...contract.machine import GpuState
from ...contract.rank import META_SUFFIX, RankFile
from ...contract.reading import OtherVersion, lenient
from ..core.escaping import printable
from ..core.schema import Row
from ..core.small_files import NotJson, read_json
from ..errors import UnreadableFile


@dataclass(frozen=True)
class Side:
    """The side file of a rank; `odd` names implausible fields."""

    record: RankFile
    odd: frozenset[str]


def rank_file(path: Path, lost: list[str] | None = None) -> Side:
    """Read the side file of a rank, empty if there is none. `lost` and errors: see `side_content`."""
    return Side(*lenient(side_content(path, lost), RankFile))


def side_content(path: Path, lost: list[str] | None = None) -> dict[str, Any]:
    """Read a JSON side file, empty if there is none.

    A file that cannot be read is empty too, and the reason is added to `lost`; without `lost`, raises UnreadableFile.
    """
    try:
        return _sensible(read_json(path))
    except FileNotFoundError:
        return {}
    except (OtherVersion, OSError, NotJson) as err:
        message = f"{path}: {_why(err)}"
        if lost is None:
            raise UnreadableFile(message) from err
        lost.append(message)
        return {}


def _why(error: OtherVersion | OSError | NotJson) -> str:
    """Why a side file cannot be read, and what to do."""
    if isinstance(error, OtherVersion):
        return f"{error}, or remove the file"
    what = error.strerror if isinstance(error, OSError) else error
    return f"side file cannot be read: {what}; repair or remove it"


def _sensible(content: object) -> dict[str, Any]:
    """The content, empty if it is not an object. Raises NotJson if it has more ranks than any job."""
    side = content if isinstance(content, dict) else {}
    for name in ("rank", "world_size"):
        number = side.get(name)
        if isinstance(number, int) and number > RANK_LIMIT:
            raise NotJson(f"its {name} is {str(number)[:40]}, expected {RANK_LIMIT:,} at most")
    return side


def probe_rows(rank: int, side: Side) -> list[Row]:
    """Rows of `clock_probes`."""
    names = ("at", "unix_ns", "offset_ns", "uncertainty_ns")
    return [{"rank": rank} | {name: getattr(one, name) for name in names} for one in side.record.clock_probe or ()]


_OF_WORK = ("wall_ns", "cpu_ns", "ready_ns", "gc_ns", "eval_ns", "checkpoint_ns", "compile_ns")


def used_outside(side: Side) -> tuple[str, int] | None:
    """CUDA ordinal of a rank's device, and the most of it that was used outside of torch; None if not recorded."""
    index = side.record.device.index if side.record.device is not None else None
    most = max((one.outside_bytes for one in side.record.step_memory), default=None)
    return None if index is None or most is None else (str(index), most)


def batch_beside(folder: Path) -> int | None:
    """Samples per step on each rank, as the side files in this folder say; None if they do not, or differ."""
    sizes = {rank_file(path, []).record.batch_size_per_rank for path in folder.glob(f"*{META_SUFFIX}")}
    return sizes.pop() if len(sizes) == 1 else None


def step_time_rows(rank: int, side: Side) -> Iterator[Row]:
    """Rows of `step_times`, without entries that are not steps, as in a file edited by hand."""
    for one in side.record.steps:
        work = {name: getattr(one.work, name) for name in _OF_WORK} if one.work is not None else {}
        yield {"rank": rank, "step": one.step, "phase": one.phase, "dur_ns": one.dur_ns} | work


_OF_KIND = {"eval": "eval_ns", "checkpoint": "checkpoint_ns", "compile": "compile_ns"}
_LEAST_OF_KIND = 0.1
"""Part of a step that evaluates, saves or compiles, and makes it one of that kind: no other step is as long as it."""


def kinds_of_steps(side: Side) -> dict[int, str]:
    """The kinds of the traced steps that hold more than training, by number, as the rank's side file says."""
    kinds = {}
    for one in side.record.steps:
        if one.work is not None:
            took_ns = {kind: getattr(one.work, name) for kind, name in _OF_KIND.items()}
            kind = max(took_ns, key=lambda kind: took_ns[kind])
            if took_ns[kind] > 0 and took_ns[kind] >= _LEAST_OF_KIND * one.work.wall_ns:
                kinds[one.step] = kind
    return kinds


def notes_on_side(rank: int, side: Side) -> Iterator[str]:
    """Yield notes on a rank's side file."""
    if side.record.complete is False:
        yield f"rank {rank}: the capture ended early: {side.record.reason or 'no reason given'}"
    for state in side.record.gpu_states:
        if state.slowed_by:
            yield f"rank {rank}: its GPU was slowed down at the {state.at} of the capture{_how_slow(state)}"
    if side.record.absent_ranks:
        absent = ranges_of(side.record.absent_ranks)
        yield (
            f"rank {absent} took no part in the capture: start every rank through the same launcher and command, and "
            "enter capture() on every rank"
        )
    if "clock_probe" in side.odd:
        yield f"rank {rank}: the clock probe in its side file makes no sense, and is left out"


def _how_slow(state: GpuState) -> str:
    """What throttles the GPU, its clock and temperature."""
    by = ", ".join(map(printable, state.slowed_by or ()))
    clock = None if state.sm_clock_mhz is None else f"{state.sm_clock_mhz:,} MHz"
    temperature = None if state.temperature_c is None else f"{state.temperature_c} °C"
    return f": {by}" + "".join(f", {one}" for one in (clock, temperature) if one)


def gpu_clock(side: Side) -> tuple[int | None, tuple[str, ...]] | None:
    """Clock of a rank's GPU at the end of the capture in MHz, and what held it down; None if it is not known."""
    last = next((state for state in reversed(side.record.gpu_states) if state.at == "end"), None)
    return None if last is None else (last.sm_clock_mhz, tuple(map(printable, last.slowed_by or ())))


def shared_gpus(sides: Iterable[tuple[int, Side]]) -> list[list[int]]:
    """The ranks of each GPU that several ranks use, by the UUIDs in their side files."""
    users: dict[str, list[int]] = {}
    for rank, side in sides:
        if side.record.device.uuid is not None:
            users.setdefault(side.record.device.uuid, []).append(rank)
    return [ranks for ranks in users.values() if len(ranks) > 1]


def notes_on_shared(ranks_of_gpus: Iterable[Sequence[int]]) -> Iterator[str]:
    """Yield a note for each GPU that several ranks use."""
    for ranks in ranks_of_gpus:
        yield (
            f"ranks {ranges_of(ranks)} share one GPU, which takes turns between them: all takes longer than on GPUs of "
            "their own, and bandwidth is not that of a link"
        )


def nvlink_bytes(side: Side) -> tuple[int, int] | None:
    """Bytes that the NVLinks of a rank's GPU sent during the capture, and its steps; None if not known."""
    sent = {state.at: state.nvlink_sent_bytes for state in side.record.gpu_states}
    begin, end, steps = sent.get("start"), sent.get("end"), len(side.record.steps)
    if begin is None or end is None or end < begin or not steps:
        return None
    return end - begin, steps
