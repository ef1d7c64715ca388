"""Figures of a result: `commtrace.plots.heatmap(result)`. A notebook shows them, `.save(path)` writes them.

    import commtrace
    result = commtrace.analyse("traces/my-run")
    commtrace.plots.heatmap(result)
    commtrace.plots.step(result, 7).save("step.svg")

Each takes what `commtrace.analyse` returns, `speedup`, `epoch_time` and `subtraction` what `analyse_sweep` does,
`before_and_after` what `compare` does, `runs` what `run_trend` does, `loss` and `accuracy` what `analyse_training`
does, `layers` and `capacity` what `analyse_machine` does. PNG needs resvg-py, the extra `figures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Analysis, Comparison, MachineAnalysis, RunTrend, SweepAnalysis, TrainingAnalysis
    from .analysis.render.plots.figure import Figure

__all__ = [
    "accuracy",
    "bandwidth",
    "before_and_after",
    "capacity",
    "causes",
    "clocks",
    "epoch_time",
    "heatmap",
    "kernels",
    "layers",
    "loss",
    "runs",
    "speedup",
    "step",
    "subtraction",
    "time",
    "traffic",
    "waits",
]


def heatmap(result: Analysis, measure: str = "caused_wait_ns") -> Figure:
    """Ranks by steps, with the ranks marked that the others wait for most.

    `measure` is what the colours mean: caused_wait_ns, exposed_wait_ns, exposed_comm_ns, late_ns or window_ns.
    """
    from .analysis.render.plots.heat import heatmap as drawn

    if measure in result.rank_steps:
        return drawn(result.rank_steps, measure, culprits=result.culprits)
    return drawn(result.breakdown_steps, measure, culprits=result.culprits, table_name="breakdown_steps")


def time(result: Analysis) -> Figure:
    """Where the time of every rank went: compute, exposed transfer and wait, copies, idle."""
    from .analysis.render.plots.bars import time_per_rank

    return time_per_rank(result.breakdown)


def bandwidth(result: Analysis) -> Figure:
    """Bus bandwidth by size with bounds, and the ceiling if the result has one."""
    from .analysis.render.plots.points import bandwidth_by_size

    ceiling = result.bandwidth_ceiling if result.ceiling is not None else None
    return bandwidth_by_size(result.bandwidth, ceiling)


def step(result: Analysis, number: int | None = None) -> Figure:
    """One step on every rank, on one clock; by default the one with most exposed wait.

    Raises NothingMeasured if there is no such step.
    """
    from .analysis.report.run_report import step_figure

    return step_figure(result, number)


def waits(result: Analysis) -> Figure:
    """Who waits because of whom."""
    from .analysis.render.plots.heat import wait_matrix

    return wait_matrix(result.waits)


def traffic(result: Analysis) -> Figure:
    """Bytes that each rank sends to each other rank."""
    from .analysis.render.plots.heat import traffic_matrix

    return traffic_matrix(result.traffic)


def clocks(result: Analysis) -> Figure:
    """Offset of every rank's clock, with its uncertainty."""
    from .analysis.render.plots.points import clock_offsets

    return clock_offsets(result.clocks)


def causes(result: Analysis) -> Figure:
    """Who makes the others wait, and why."""
    from .analysis.render.plots.bars import causes as drawn

    return drawn(result.ranks)


def kernels(result: Analysis) -> Figure:
    """Kernels by time, over all devices."""
    from .analysis.render.plots.bars import top_kernels

    return top_kernels(result.kernels)


def speedup(sweep: SweepAnalysis) -> Figure:
    """Speedup by number of workers."""
    from .analysis.render.plots.lines import speedup_by_workers

    return speedup_by_workers(sweep.scaling)


def epoch_time(sweep: SweepAnalysis) -> Figure:
    """Time of an epoch by batch size, up to where memory or data end."""
    from .analysis.render.plots.lines import epoch_time_by_batch_size

    return epoch_time_by_batch_size(sweep.timings)


def subtraction(sweep: SweepAnalysis) -> Figure:
    """Communication of an epoch by subtraction, beside the traced communication."""
    from .analysis.render.plots.paired import subtraction_and_measured

    return subtraction_and_measured(sweep.subtraction)


def before_and_after(comparison: Comparison) -> Figure:
    """A typical step of A and of B, in its parts."""
    from .analysis.render.plots.bars import time_per_side

    return time_per_side(comparison.typical_steps)


def runs(trend: RunTrend) -> Figure:
    """A typical step of every run of a series, in its parts."""
    from .analysis.render.plots.bars import time_per_run

    return time_per_run(trend.trend)


def loss(training: TrainingAnalysis) -> Figure:
    """Loss after every epoch."""
    from .analysis.render.plots.lines import loss_by_epoch

    return loss_by_epoch(training.training_epochs)


def accuracy(training: TrainingAnalysis) -> Figure:
    """Accuracy after every epoch."""
    from .analysis.render.plots.lines import accuracy_by_epoch

    return accuracy_by_epoch(training.training_epochs)


def layers(machine: MachineAnalysis) -> Figure:
    """Memory and power of every layer."""
    from .analysis.render.plots.layers import memory_and_power

    return memory_and_power(machine.layers)


def capacity(machine: MachineAnalysis) -> Figure:
    """How many layers devices can train, and where they are."""
    from .analysis.render.plots.capacity import layers_by_devices

    return layers_by_devices(machine.capacity)
