"""Sentences on what is traced of a script, and on why nothing is."""

from ..config import RunConfig

IN_GRAPH = "the optimizer steps inside a CUDA graph, and replays of one cannot be counted; --whole-run traces them"


def plan_in_words(config: RunConfig) -> str:
    """`steps 10 to 14 are traced, where the next one is step 0`."""
    if config.limits is not None:
        return "the whole run is traced"
    schedule, first = config.schedule, config.schedule.first_active
    if config.from_minute is not None:
        return f"{schedule.active} steps are traced after {config.from_minute:g} minutes"
    again = f", and {schedule.repeat - 1} times more every {schedule.cycle_steps}" if schedule.repeat > 1 else ""
    return f"{traced(first, schedule.active)} traced, where the next one is step 0{again}"


def traced(first: int, count: int) -> str:
    """`steps 10 to 14 are`, to go on with `traced`."""
    return f"steps {first:,} to {first + count - 1:,} are" if count > 1 else f"step {first:,} is"


def nothing_captured(config: RunConfig, processes: str | None, *, in_graph: bool, has_stepped: bool) -> str:
    """Why nothing was captured in a process; `processes` is what is known of those that it started."""
    if in_graph:
        return f"nothing was captured: {IN_GRAPH}"
    if has_stepped:
        return "nothing was captured: rank 0, which the other ranks follow, made no step of an optimizer"
    if config.step_on is not None:
        return f"nothing was captured: {config.step_on} did not return in this process (--step-on)"
    if processes is not None:
        return f"nothing was captured: this process trained nothing, and {processes}"
    if config.limits is None:
        return "nothing was captured: no optimizer stepped in this process; --whole-run traces scripts without one"
    return "nothing was captured: this process is one of several, and never joined a process group"
