"""Where a program was at each event of a device's memory: step, region, phase and operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.schema import bare, flags_of_texts
from ...core.steps import Mark, steps_at
from ..device.idle import Host
from ..device.launches import names_around
from ..functions import is_of_user
from ..regions.nesting import BACKWARD, DIRECT, NO_REGION, RECOMPUTE, CpuRanges, RegionPaths, Regions, regions_of
from .held import NOT_RECORDED, DeviceMemory

OPTIMIZER = RECOMPUTE + 1
"""A phase beside those of regions: inside of an optimizer's step."""
PHASE_NAMES = (None, "backward", "recompute", "optimizer")
"""Their names; the first one is what is called directly: forward pass, data, anything else."""

_COLUMNS = ["thread", "name", "start_ns", "dur_ns"]
_OPTIMIZER = "Optimizer.step"
_ALLOCATING = ("aten::empty", "aten::new_empty", "aten::_empty", "aten::resize_", "detach")
"""How the names of operators begin that do nothing but allocate: the one around them says what for."""
_HANDING = (markers.C10D, *markers.FUNCTIONAL, "fsdp::", "FSDP::all_gather", "FSDP::post_backward_reduce")
"""How the names of operators and annotations begin that allocate for a collective."""


class Places(NamedTuple):
    """Where each event was; all but `paths` of shape (events,).

    `region` is a number in `paths`; `phase` one of PHASE_NAMES by its place. `operator` and `line` are None where no
    operator or function of the user's own code is known. `is_main` flags events of the thread that runs the steps and
    of those of autograd. `step` is NO_STEP outside of steps.
    """

    paths: RegionPaths
    region: Ints
    phase: Ints
    operator: NDArray[Any]
    line: NDArray[Any]
    is_communicating: Flags
    is_main: Flags
    step: Ints


@dataclass(frozen=True)
class CpuProgram:
    """What the CPU of one rank did in one cycle; the arguments are tables of these names, or of `Host`."""

    host: Host
    activities: pd.DataFrame
    operator_calls: pd.DataFrame
    paths: RegionPaths = field(default_factory=RegionPaths)

    @property
    def step_marks(self) -> list[Mark]:
        """The annotations of steps."""
        return self.host.step_marks

    def regions(self) -> Regions:
        """Its regions; their paths are in `paths`."""
        cpu = CpuRanges.of(
            activities=self.activities,
            annotations=self.host.annotations,
            modules=self.host.modules,
            cpu_operators=self.host.operators,
            operator_calls=self.operator_calls,
        )
        return regions_of(cpu, self.paths)

    def operators(self) -> pd.DataFrame:
        """Its operators without ranges around many; on runs without a GPU the outermost are among the activities."""
        on_cpu = self.activities[bare(self.activities["device"]) == "cpu"].rename(columns={"stream": "thread"})
        tables = [self.host.operator_ranges, on_cpu, self.operator_calls]
        known = pd.concat([table[_COLUMNS] for table in tables if len(table)] or [tables[0][_COLUMNS]])
        beginnings = (*markers.TORCH_RANGES, markers.EVALUATE, markers.GLOO_MARK)
        others: pd.DataFrame = known[~flags_of_texts(known["name"], lambda name: name.startswith(beginnings))]
        return others

    def places(self, memory: DeviceMemory) -> Places:
        """Where each event of this memory was."""
        regions, operators = self.regions(), self.operators()
        thread, time_ns = memory.thread, memory.time_ns
        region, phase = regions.places(thread, time_ns)
        is_main = np.isin(thread, [regions.main, *regions.engines]) if len(self.step_marks) else thread != NOT_RECORDED
        phase = np.where(self._in_optimizer()[region] & (phase == DIRECT), OPTIMIZER, phase)
        named = flags_of_texts(operators["name"], lambda name: not name.startswith(_ALLOCATING))
        operator = names_around(operators[named], thread, time_ns)
        operator = operator.fillna(names_around(operators[~named], thread, time_ns))
        functions = self.host.functions
        functions = functions[flags_of_texts(functions["name"], is_of_user)]
        line = names_around(functions, thread, time_ns).map(_line_of, na_action="ignore")
        return Places(
            self.paths,
            region,
            phase,
            _texts(operator),
            _texts(line),
            self._is_communicating(thread, time_ns),
            is_main,
            steps_at(time_ns, self.step_marks),
        )

    def _in_optimizer(self) -> Flags:
        """Whether each path lies in the step of an optimizer."""
        inside = np.zeros(len(self.paths.names), dtype=bool)
        for path, (name, parent) in enumerate(zip(self.paths.names, self.paths.parents, strict=True)):
            inside[path] = name.startswith(_OPTIMIZER) or (path > NO_REGION and inside[parent])
        return inside

    def _is_communicating(self, thread: Ints, time_ns: Ints) -> Flags:
        """Whether a thread was about to hand a collective over."""
        tables = [self.host.operators, self.host.annotations, self.operator_calls]
        handing = [
            table.loc[flags_of_texts(table["name"], lambda name: name.startswith(_HANDING)), _COLUMNS]
            for table in tables
            if len(table)
        ]
        if not any(map(len, handing)):
            return np.zeros(len(time_ns), dtype=bool)
        found: Flags = names_around(pd.concat(handing), thread, time_ns).notna().to_numpy()
        return found


def nowhere(memory: DeviceMemory) -> Places:
    """The places of events of which nothing else is known."""
    nothing = np.full(memory.events, None, dtype=object)
    zeros = np.zeros(memory.events, dtype=np.int64)
    return Places(
        RegionPaths(),
        zeros + NO_REGION,
        zeros + DIRECT,
        nothing,
        nothing,
        zeros > 0,
        zeros == 0,
        steps_at(memory.time_ns, ()),
    )


def is_backward(phase: Ints) -> Flags:
    """Whether each phase is part of a backward pass."""
    found: Flags = (phase == BACKWARD) | (phase == RECOMPUTE)
    return found


def _line_of(call: str) -> str:
    """`train.py:31` for `train.py(31): load_batch`."""
    found = markers.FUNCTION.match(call)
    return f"{found['path']}:{found['line']}" if found else call


def _texts(column: pd.Series[Any]) -> NDArray[Any]:
    """Texts as objects, None for NA."""
    texts: NDArray[Any] = np.array(column, dtype=object)  # a copy: newer pandas gives arrays that cannot be written
    texts[column.isna().to_numpy()] = None
    return texts
