"""What several tables need and what is no table itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import value
from ..errors import NothingMeasured
from ..metrics.compute.peaks import DevicePeaks, peak_of
from ..metrics.typical_step import Replicas

if TYPE_CHECKING:
    import pandas as pd

    from ..core.given_peaks import GivenPeaks
    from ..metrics.device.graphs import Captured
    from ..metrics.device.idle import HostTables
    from ..run.run import Run

NO_TIMES = "the files say how long collectives took, but neither when they began nor what else ran"
WITH_DETAILS = "recordings packed --no-details have none; in Python, analyse(..., details=True) reads them"


@value
def engine_replicas(run: Run) -> Replicas:
    """The replica of each rank."""
    return Replicas(run.replicas, are_all=not run.missing_ranks)


@value
def placed_activities(run: Run) -> pd.DataFrame:
    """The activities of the run, those launched before the recording in the step in whose window they began."""
    from ..metrics import over_steps

    return over_steps.placed(run.activities)


@value
def captured_graphs(run: Run) -> Captured:
    """What launched the kernels of CUDA graphs, where traces of their capture are beside those of the run."""
    from ..metrics.device import graphs

    calls, tables = run.captures
    return graphs.captured(
        activities=run.activities,
        runtime_calls=run.runtime_calls,
        step_marks=run.step_marks,
        captured_calls=calls,
        tables={name: getattr(tables, name) for name in ("cpu_operators", "operator_calls", "annotations", "modules")},
    )


@value
def computed(run: Run, placed_activities: pd.DataFrame, captured_graphs: Captured) -> pd.DataFrame:
    """What ran with its operator, without communication. Raises NothingMeasured if operators were not read."""
    from ..metrics.compute.work import compute_work

    if not run.details:
        raise NothingMeasured(f"{run.name}: was read without operators; {WITH_DETAILS}")
    return compute_work(
        captured_graphs.launched(placed_activities),
        captured_graphs.beside("launches", run.launches),
        captured_graphs.beside("operator_calls", run.operator_calls),
        run.annotations,
    )


@value
def host_tables(run: Run) -> HostTables:
    """What the CPUs of the run did, by which idle time is explained."""
    from ..metrics.device.idle import HostTables

    return HostTables(
        calls=run.runtime_calls,
        operators=run.cpu_operators,
        annotations=run.annotations,
        is_read=run.details,
        modules=run.modules,
        functions=run.functions,
    )


@value
def device_peaks(run: Run, peaks: GivenPeaks) -> DevicePeaks:
    """The peak of each device, by rank and device; None where it is not known."""
    return {device: peak_of(name, peaks) for device, name in run.device_names.items()}
