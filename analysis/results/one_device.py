"""The breakdown of a file with one device, directly from its content, in half the memory of tables.

Tables of everything need pandas, whose import takes as long as half of reading 200 MB. For a single device no call can
be split into wait and transfer, so a breakdown needs no calls, and only kinds and times of the activities.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...contract.run import RUN_FILE
from ..core import markers
from ..core.escaping import encodable
from ..core.kinds import COMM, KINDS
from ..core.schema import PlainTable
from ..core.steps import launch_times, steps_at
from ..core.tables.communication import BREAKDOWN, BREAKDOWN_STEPS
from ..metrics.device.breakdown import Ran, Split, device_profile, device_row, step_rows
from ..recording.arrays import annotation_times, doubles, durations, in_ns, integers, negative_durations, repairs
from ..recording.recorded_rank import recorded_rank
from ..recording.recording import RawTrace
from ..recording.shared_files import file_of
from ..recording.step_marks import with_marked_steps
from ..recording.strays import without_strays
from ..run.rank_files import ReadFile, members_of, notes_on
from ..run.side_files import side_content
from ..run.unseen import unseen_communication


@dataclass(frozen=True)
class LoneDevice:
    """Activities of the only device in the only cycle, and notes on its file."""

    rank: int
    device: str
    ran: Ran
    notes: tuple[str, ...]

    @property
    def breakdown(self) -> PlainTable:
        """`Analysis.breakdown` of this device."""
        row = device_row([device_profile(self.rank, self.device, 0, self.ran)], Split())
        return BREAKDOWN.plain([row | {"partial": False}])

    @property
    def breakdown_steps(self) -> PlainTable:
        """`Analysis.breakdown_steps` of this device."""
        rows = step_rows(device_profile(self.rank, self.device, 0, self.ran), Split())
        return BREAKDOWN_STEPS.plain(row | {"partial": False} for row in rows)


def lone_device(path: Path, raw: RawTrace, step_marker: str | None = None) -> LoneDevice | None:
    """The only device in the only file of a run; None with several, without times, or if damaged.

    Also None if it is the whole job, and communicates: then calls wait for no one, and the tables say so.

    Raises MixedJobs, UnreadableFile.
    """
    raw, _, step_notes = with_marked_steps(without_strays(path, raw), step_marker)
    devices = integers(raw.activities["device"])
    if not raw.header.has_starts or not len(devices) or (devices != devices[0]).any() or raw.damage is not None:
        return None
    notes = (
        *raw.notes,
        *negative_durations(path, raw),
        *repairs(path, raw),
        *unseen_communication(path, raw),
        *(f"{encodable(path.name)}: {note}" for note in step_notes),
    )
    known = recorded_rank(raw.comm_args)
    (member,), _ = members_of([ReadFile(path=path, header=raw.header, pid=raw.pid, notes=notes, recorded_rank=known)])
    if COMM in raw.kinds and (raw.header.world_size or member.side.record.world_size) == 1:
        return None
    side_content(file_of(path).with_name(RUN_FILE))  # a side file that cannot be read is an error, here as elsewhere
    on_gloo = sum(annotation.name.startswith(markers.GLOO_MARK) for annotation in raw.annotations)
    return LoneDevice(member.rank, str(devices[0]), _ran(raw), tuple(notes_on(member, on_gloo)))


def _ran(raw: RawTrace) -> Ran:
    base_ns, columns, launches = raw.zero_ns, raw.activities, raw.launches
    start_ns = in_ns(doubles(columns["ts"])) + base_ns
    launched_ns = launch_times(
        integers(columns["correlation"]),
        integers(launches["correlation"]),
        in_ns(doubles(launches["ts"])) + base_ns,
    )
    begun, took = annotation_times(raw.annotations, base_ns)
    names = [annotation.name for annotation in raw.annotations]
    return Ran(
        of_kind={kind: np.array([k == kind for k in raw.kinds])[integers(columns["name"])] for kind in KINDS},
        start_ns=start_ns,
        end_ns=start_ns + durations(columns),
        step=steps_at(launched_ns, zip(names, begun.tolist(), took.tolist(), strict=True)),
    )
