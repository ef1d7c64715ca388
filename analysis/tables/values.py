"""What several tables need and what is no table itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import at_rank, each_rank, value
from ..errors import NothingMeasured
from ..metrics.compute.peaks import DevicePeaks, peak_of
from ..metrics.typical_step import Replicas

if TYPE_CHECKING:
    import pandas as pd

    from ..core.given_peaks import GivenPeaks
    from ..metrics.device.graphs import Captured, Replays
    from ..metrics.device.idle import DeviceGaps, HostTables
    from ..run.captures import GraphCaptures
    from ..run.run import Run

NO_TIMES = "the files say how long collectives took, but neither when they began nor what else ran"
WITH_DETAILS = "recordings packed --no-details have none, and analyse(..., details=False) reads none"


@value
def engine_replicas(run: Run) -> Replicas:
    """The replica of each rank."""
    return Replicas(run.replicas, are_all=not run.missing_ranks)


@value
@at_rank
def placed_activities(activities: pd.DataFrame) -> pd.DataFrame:
    """The activities of the run, those launched before the recording in the step in whose window they began."""
    from ..metrics import over_steps

    return over_steps.placed(activities)


@value
@at_rank
def captured_graphs(
    activities: pd.DataFrame, runtime_calls: pd.DataFrame, step_marks: pd.DataFrame, captures: GraphCaptures
) -> Captured:
    """What launched the kernels of CUDA graphs, where traces of their capture are beside those of the run."""
    from ..metrics.device import graphs

    calls, tables = captures
    return graphs.captured(
        activities=activities,
        runtime_calls=runtime_calls,
        step_marks=step_marks,
        captured_calls=calls,
        tables={name: getattr(tables, name) for name in ("cpu_operators", "operator_calls", "annotations", "modules")},
    )


@value
@each_rank
def replayed_graphs(captured_graphs: Captured) -> Replays:
    """Of how many replayed graphs something is not known."""
    return captured_graphs.replays


@value
@at_rank
def computed(
    name: str,
    details: bool,
    placed_activities: pd.DataFrame,
    launches: pd.DataFrame,
    operator_calls: pd.DataFrame,
    annotations: pd.DataFrame,
    captured_graphs: Captured,
) -> pd.DataFrame:
    """What ran with its operator, without communication. Raises NothingMeasured if operators were not read."""
    from ..metrics.compute.work import compute_work

    if not details:
        raise NothingMeasured(f"{name}: was read without operators; {WITH_DETAILS}")
    return compute_work(
        captured_graphs.launched(placed_activities),
        captured_graphs.beside("launches", launches),
        captured_graphs.beside("operator_calls", operator_calls),
        annotations,
    )


@value
@at_rank
def host_tables(
    runtime_calls: pd.DataFrame,
    cpu_operators: pd.DataFrame,
    annotations: pd.DataFrame,
    modules: pd.DataFrame,
    functions: pd.DataFrame,
    details: bool,
    has_gc: bool,
) -> HostTables:
    """What the CPUs of the run did, by which idle time is explained."""
    from ..metrics.device.idle import HostTables

    return HostTables(runtime_calls, cpu_operators, annotations, details, has_gc, modules, functions)


@value
@at_rank
def device_gaps(activities: pd.DataFrame, host_tables: HostTables) -> list[DeviceGaps]:
    """What each device did, and when it was idle."""
    from ..metrics.device.idle import gaps_of_devices

    return gaps_of_devices(activities, host_tables)


@value
def device_peaks(run: Run, peaks: GivenPeaks) -> DevicePeaks:
    """The peak of each device, by rank and device; None where it is not known."""
    return {device: peak_of(name, peaks) for device, name in run.device_names.items()}
