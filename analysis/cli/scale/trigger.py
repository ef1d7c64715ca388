"""`commtrace trigger`: ask a running job for a capture."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ....common import trigger
from ....common.trigger import MOST_RANKS, MOST_STEPS, ON_DEMAND_STEPS, Plan, Pulse, Request, folder_of_plan
from ....common.wording import counted, ranks_in_words
from ...errors import NothingListens, NoTraces, UnreadableFile
from ..output import finite, print_message, write_out

_POLL_S = 0.1
_QUIET_S = 60.0


def trigger_command(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Where the job, started by commtrace run, writes to.")],
    *,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=MOST_STEPS, help="How many steps to trace.")
    ] = ON_DEMAND_STEPS,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="LIST", help="Trace only these, such as 0-7,64.", show_default="all ranks"),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, callback=finite, help="How long to wait for the job's answer.")
    ] = 60.0,
) -> None:
    """Capture some steps of a running job, now.

    The job must have been started by commtrace run. Its rank 0 names a step a few seconds ahead, and all ranks begin
    there; the traces go to a folder beside RUN_DIR. Without this command, an empty file RUN_DIR/trigger asks for the
    same, as does SIGUSR2 to one of the ranks.

    \b
    Examples:
      commtrace trigger traces/mine
      commtrace trigger traces/mine --steps 2
      commtrace trigger traces/mine --steps 2 --ranks 0-7,64
      touch traces/mine/trigger
      commtrace compare traces/mine traces/mine-step1200
    """
    request = Request(steps, None if ranks is None else _numbers(ranks))
    if not run.is_dir():
        raise NoTraces(f"{run}: no such directory; expected the run directory of a running job")
    pulses = trigger.pulses_of(run)
    _check_alive(run, pulses, request)
    plan, done = trigger.plan_of(run) or Plan(), max(pulse.step for pulse in pulses.values())
    if (plan.steps, plan.ranks) != (request.steps, request.ranks) or plan.from_step <= done:
        try:
            trigger.ask(run, request)
        except OSError as err:
            raise UnreadableFile(f"{run}: nothing can be written there: {err.strerror or err}") from err
        plan = _answer(run, plan, patience)
        done = max((pulse.step for pulse in trigger.pulses_of(run).values()), default=done)
    first, last = plan.from_step, plan.from_step + plan.steps - 1
    folder = folder_of_plan(run, plan)
    write_out(f"steps {first:,} to {last:,} will be traced into {folder}; the job is at step {done:,}\n", None)


def _numbers(text: str) -> tuple[int, ...]:
    """Ranks as in `0-7,64`."""
    found: set[int] = set()
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if not first <= last < MOST_RANKS:
            raise typer.BadParameter(f"{part!r}: expected ranks such as 0-7,64", param_hint="--ranks")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _check_alive(run: Path, pulses: dict[int, Pulse], request: Request) -> None:
    """Raise NothingListens unless a job listens there, and has the ranks that are asked for."""
    if not pulses:
        raise NothingListens(
            f"{run}: no job listens there; expected one that commtrace run has started, after its first steps, and "
            "that still runs"
        )
    newest_s = time.time() - max(pulse.unix_ns for pulse in pulses.values()) / 1e9
    every_s = max(pulse.every_s for pulse in pulses.values())
    if newest_s > _QUIET_S + 3 * every_s:
        print_message(
            f"the job has made no step for {newest_s:.0f} s; it is captured when it goes on, unless it has ended",
            kind="note",
        )
    unknown = sorted(set(request.ranks or ()) - set(pulses))
    if request.ranks is not None and len(unknown) == len(request.ranks):
        raise NothingListens(f"{run}: {ranks_in_words(unknown)} of --ranks not heard of; those that are: "
                             f"{ranks_in_words(sorted(pulses))}")  # fmt: skip


def _answer(run: Path, known: Plan, patience_s: float) -> Plan:
    """The plan that follows `known`. Raises NothingListens."""
    until_s = time.monotonic() + patience_s
    while True:
        plan = trigger.plan_of(run)
        if plan is not None and plan not in (Plan(), known):
            return plan
        if refusal := trigger.refusal_of(run):
            raise NothingListens(f"{run}: {refusal}")
        if not trigger.pulses_of(run):
            with suppress(OSError):
                trigger.take_back(run)
            raise NothingListens(f"{run}: the job has ended before it could answer; nothing more is traced")
        if time.monotonic() > until_s:
            raise NothingListens(
                f"{run}: no answer within {counted(round(patience_s), 'second')}; the request stays there, and the job "
                "will answer when it makes its next steps, or when the capture is over that it makes now"
            )
        time.sleep(_POLL_S)
