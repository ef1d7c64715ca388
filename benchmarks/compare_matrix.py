"""How often `compare` finds a planted change, and its cause, in simulated captures. See README.md beside this.

A cell is a job of some ranks and something planted into its captures: a cause that makes steps 1, 2, 5 or 10 % longer,
or nothing. Three captures without it are compared with three that have it, either way round, and one with one by a
history of six. Every capture has another seed. In some cells kernels have other names, the captures more steps, one
capture is cold, or the first steps of each are. What compare should say comes from what was planted; exit codes are
those of `commtrace compare --fail-above`, above half the change or twice as much, for captures that are read already:
reading them took most of the time of 64 ranks.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import pandas as pd  # noqa: E402
from simulator import Injection, Window, World, simulate  # noqa: E402
from simulator.ops import Block, Comm, Cpu, Kernel, Op, Wait  # noqa: E402
from simulator.pipelines import three_d  # noqa: E402
from simulator.programs import ddp, fsdp, moe, tp  # noqa: E402
from simulator.world import Hardware, Place, Program  # noqa: E402

from commtrace import Analysis, Comparison, analyse  # noqa: E402
from commtrace.analysis.cli.commands import compare as command  # noqa: E402
from commtrace.analysis.comparison.history import keep_in_history, read_history  # noqa: E402
from commtrace.analysis.core.schema import records  # noqa: E402
from commtrace.cli import main as commtrace  # noqa: E402

SHAPES = {4: (2, 2), 8: (2, 4), 64: (8, 8)}
PERCENT = (0, 1, 2, 5, 10)
ALIKE, RENAMED, STEPS_TOO, COLD, WARMING = OTHERWISE = ("alike", "renamed", "steps", "cold", "warming")
STEPS, MORE_STEPS, CAPTURES, PAST = 10, 18, 3, 6
COLD_PERCENT = 20
CANNOT_TELL, QUIET_LIMIT = 4, 5.0
OTHER_GPU = "NVIDIA H200"
HARDWARE = Hardware(compute_jitter=0.005, gpu_spread=0.0005, transfer_jitter=0.01, cpu_jitter=0.05)
JOBS: dict[str, Program] = {
    "ddp hidden": partial(ddp, layers=4, layer_us=400.0, buckets=(4 << 20, 4 << 20, 1 << 20)),
    "ddp exposed": partial(ddp, layers=3, buckets=(9 << 20, 9 << 20, 24 << 20), item=True),
    "ddp launching": partial(ddp, layers=16, layer_us=20.0, buckets=(1 << 20, 1 << 20), item=True),
    "fsdp": partial(fsdp, elems=6 << 20, extras=False),
    "fsdp reading": partial(fsdp, elems=12 << 20, extras=False, item=True),
    "tp": partial(tp, layers=4, item=True),
    "pipeline": partial(three_d, tp=1, pp=2, microbatches=4, layer_us=300.0),
    "moe": partial(moe, us=300.0, width=256, item=True),
}
BY_CPU = ("ddp exposed", "ddp launching", "fsdp reading", "tp", "moe")
"""Jobs whose CPUs wait for their devices in every step, so that what they do shows."""


class Captured(NamedTuple):
    """A capture as files and as it is read, once for all that is compared with it."""

    path: Path
    analysis: Analysis


Side = tuple[Captured, ...]


@dataclass(frozen=True)
class Cause:
    """How an amount of it is planted into a world, and what a comparison names, in the words or as the change."""

    plant: Callable[[World, float], World]
    named: tuple[str, ...]


def same_data(place: Place, *, of: Program, change: Callable[[Op], Op]) -> list[Op]:
    """The program on the same data in every capture, with each operation changed."""
    return [change(op) for op in of(replace(place, seed=17))]


def unchanged(op: Op) -> Op:
    return op


def changed(world: World, change: Callable[[Op], Op]) -> World:
    return replace(world, program=partial(same_data, of=world.program, change=change))


def longer(op: Op, kernel: str, times: float) -> Op:
    return replace(op, us=op.us * times) if isinstance(op, Kernel) and kernel in op.name else op


def later(op: Op, times: float) -> Op:
    """The operation of a slower CPU."""
    if isinstance(op, (Kernel, Comm, Block, Wait)):
        return replace(op, cpu_us=op.cpu_us * times)
    return replace(op, us=op.us * times) if isinstance(op, Cpu) else op


def renamed(op: Op) -> Op:
    return replace(op, name=f"other_{op.name}_v2") if isinstance(op, Kernel) and not op.is_copy else op


def injected(world: World, us: float, kind: str, ranks: tuple[int, ...], at: float) -> World:
    return replace(world, injections=(*world.injections, Injection(kind, ranks, tuple(range(world.steps)), us, at)))


def slower_links(world: World, us: float) -> World:
    hardware, times = world.hardware, 1 + us / 1000
    rates = hardware.intra_gb_per_s / times, hardware.inter_gb_per_s / times
    return replace(world, hardware=replace(hardware, intra_gb_per_s=rates[0], inter_gb_per_s=rates[1]))


def another_gpu(world: World, us: float) -> World:
    return replace(all_kernels().plant(world, us), layout=replace(world.layout, gpu=OTHER_GPU))


def all_kernels() -> Cause:
    return Cause(
        lambda w, us: changed(w, partial(longer, kernel="", times=1 + us / 1000)),
        ("every kernel takes", "everything takes"),
    )


def causes(job: str, ranks: int, rank: int) -> dict[str, Cause]:
    """What is planted into this job; of one rank, into this one."""
    gpus, every = SHAPES[ranks][1], tuple(range(ranks))
    host, kernel = every[gpus : 2 * gpus], "gemm_bf16bf16_tp" if job == "tp" else "flash_fwd"
    this, other = (
        f"rank {rank} as fast as the others",
        ("host node01 as fast as the others", "every kernel of host node01"),
    )

    def put(kind: str, on: tuple[int, ...], at: float) -> Callable[[World, float], World]:
        return partial(injected, kind=kind, ranks=on, at=at)

    found = {
        "a kernel of a rank": Cause(put("slower", (rank,), 0.4), (this,)),
        "a throttled rank": Cause(put("throttled", (rank,), 0.4), (this,)),
        "a throttled host": Cause(put("throttled", host, 0.4), other),
        "a kernel": Cause(lambda w, us: changed(w, partial(longer, kernel=kernel, times=1 + us / 1000)), (kernel,)),
        "all kernels": all_kernels(),
        "another GPU": Cause(another_gpu, (f"{OTHER_GPU} in place of", f"in place of {OTHER_GPU}")),
    }
    if job != "ddp hidden":
        found["links"] = Cause(slower_links, ("transfer", "links"))
    if job in BY_CPU:
        found |= {
            "the loader": Cause(put("data", every, 0.0), ("waiting for batches",)),
            "garbage": Cause(put("gc", every, 0.0), ("collecting garbage",)),
            "garbage within": Cause(put("gc", every, 0.5), ("collecting garbage",)),
            "allocations": Cause(put("alloc", every, 0.0), ("allocating",)),
            "copies": Cause(put("pageable", every, 0.0), ("copies", "Memcpy")),
            "a wait": Cause(put("block", every, 0.6), ("waiting for devices",)),
            "Python": Cause(put("python", every, 0.0), ("CPUs take",)),
            "Python of a rank": Cause(put("python", (rank,), 0.0), (this,)),
            "the loader of a rank": Cause(put("data", (rank,), 0.0), (this,)),
        }
    if job == "ddp launching":
        found["slower CPUs"] = Cause(lambda w, us: changed(w, partial(later, times=1 + us / 1000)), ("CPUs take",))
    return found


def world_of(job: str, ranks: int, seed: int, steps: int = STEPS) -> World:
    program = JOBS[job]
    if job == "pipeline" and ranks > 4:
        program = partial(program, tp=2, pp=2 if ranks == 8 else 4)
    plain = World(seed, program, *SHAPES[ranks], steps + 2, hardware=HARDWARE, window=Window(((1, steps),)))
    return changed(plain, unchanged)


def step_us(world: World) -> float:
    """The length of a step of its devices, which the simulator knows."""
    happened = simulate(world).happened
    ends = Counter[int]()
    for each in (each for of in happened.ran for each in of if isinstance(each.op, Kernel)):
        ends[each.step] = max(ends[each.step], round(1000 * happened.times[each.end]))
    last = world.window.cycles[0][1]
    return (ends[last] - ends[0]) / last / 1000


def amount(world: World, cause: Cause, percent: int) -> float | None:
    """How much of a cause makes steps longer by this percentage, in us; None if no amount does."""
    plain = step_us(world)
    more, least, most = percent / 100 * plain, 0.0, float("inf")
    us = more
    while us < 40 * plain and most - least > 1e-3 * us:
        missing = plain + more - step_us(cause.plant(world, us))
        if abs(missing) <= 0.04 * more:
            return us
        least, most = (us, most) if missing > 0 else (least, us)
        us = 2 * us if most == float("inf") else (least + most) / 2
    return None


def captured(world: World, folder: Path) -> Captured:
    simulate(world).write(folder)
    return Captured(folder, analyse(folder, workers=1))


@cache
def without(job: str, ranks: int, seed: int, place: Path) -> tuple[Side, Path]:
    """Captures with nothing planted, and the file with a history of others."""

    def plain(number: int) -> Captured:
        return captured(world_of(job, ranks, 1000 * seed + number), place / f"{job} {number}".replace(" ", "-"))

    book = place / f"{job}.jsonl"
    for number in range(CAPTURES, CAPTURES + PAST):
        past = plain(number)
        keep_in_history(book, past.analysis, past.path)
    return tuple(map(plain, range(CAPTURES))), book


class Cell(NamedTuple):
    """What is planted into which job, and how those captures differ besides."""

    job: str
    ranks: int
    cause: str
    percent: int
    other: str


def drawn(rng: random.Random, asked: argparse.Namespace) -> Iterator[Cell]:
    """The cells asked for in a random order, over and over; half are alike besides, where that is not asked for."""
    rest = [other for other in asked.other if other != ALIKE]
    others = [*[ALIKE] * max(len(rest) // 2, 1), *rest] if ALIKE in asked.other else rest
    every = [
        (job, asked.ranks, cause, percent)
        for job in asked.jobs
        for cause in causes(job, asked.ranks, 1)
        if cause in (asked.causes or [cause])
        for percent in asked.percents
    ]
    while every:
        for each in rng.sample(every, len(every)):
            yield Cell(*each, rng.choice(others))


def counts_of(cell: Cell, rng: random.Random, seed: int, place: Path) -> tuple[dict[str, int], list[str]] | None:
    """What is found of a cell, and what is wrong; None if no amount of the cause makes steps so much longer."""
    _, ranks, name, percent, other = cell
    cause = causes(cell.job, ranks, rng.randrange(1, ranks))[name]
    back = rng.random() < 0.5
    first = 1000 * seed + rng.randrange(100, 1000 - CAPTURES)
    us = amount(world_of(cell.job, ranks, first), cause, percent) if percent else 0.0
    cold_us = amount(world_of(cell.job, ranks, first), all_kernels(), COLD_PERCENT) if other == COLD else 0.0
    if us is None or cold_us is None:
        return None

    def planted(number: int) -> World:
        world = world_of(cell.job, ranks, first + number, MORE_STEPS if other == STEPS_TOO else STEPS)
        world = changed(world, renamed) if other == RENAMED else world
        if other == COLD and not number:
            world = all_kernels().plant(world, cold_us)
        if other == WARMING:
            slow = Injection("throttled", tuple(range(ranks)), (1, 2), 0.5 * step_us(world))
            world = replace(world, injections=(slow,))
        return cause.plant(world, us) if us else world

    plain, book = without(cell.job, ranks, seed, place)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        with_it = tuple(captured(planted(number), Path(folder) / f"planted-{number}") for number in range(CAPTURES))
        sides = (with_it, plain) if back else (plain, with_it)
        change, limit = -percent if back else percent, percent * rng.choice((0.5, 2.0)) or QUIET_LIMIT
        several, counts, wrong = _counted("3v3", sides, None, change, limit)
        _, more, also = _counted("1v1", (sides[0][-1:], sides[1][-1:]), book, change, limit)
    counts, wrong = counts | more, wrong + also
    if percent:
        said = [f"{row['what']}: {row['cause']}" for row in records(several.what_differs)[:1]]
        counts["cause right"] = any(words in each for words in cause.named for each in said)
        wrong += [] if counts["cause right"] else [f"cause {several.cause}"]
    if other in (COLD, WARMING):
        named = several.decision.apart if other == COLD else several.decision.warming
        counts["cold named"] = len(named) == (1 if other == COLD else CAPTURES)
        wrong += [] if counts["cold named"] else [f"named {named}"]
    return counts, [*(["B is the plain side"] if back and wrong else []), *wrong]


def _counted(
    way: str, sides: tuple[Side, Side], book: Path | None, change: int, limit: float
) -> tuple[Comparison, dict[str, int], list[str]]:
    """What is decided on a change by this percentage, and by the command above a limit; and what is wrong."""
    of_a, of_b = (tuple(one.analysis for one in side) for side in sides)
    both = Comparison(of_a, of_b, history=None if book is None else read_history(book))
    wanted = "alike or open" if not change else "longer" if change > 0 else "shorter"
    outcome = both.decision.outcome.value
    is_right = outcome in wanted.split(" or ")
    code, right = exit_code(sides, book, limit), 3 if change > limit else 0
    counts: dict[str, int] = {
        f"{way} right": is_right,
        f"{way} exit wrong": code not in (right, CANNOT_TELL),
        f"{way} exit {CANNOT_TELL}": code == CANNOT_TELL,
    }
    measured = f"{100 * (both.decision.change_frac or 0):+.2f} %, runs {100 * both.decision.runs_spread_frac:.2f} %"
    wrong = [] if is_right else [f"{way} {outcome} {measured}"]
    wrong += [] if code in (right, CANNOT_TELL) else [f"{way} exit {code} above {limit:g} % {measured}"]
    return both, counts, wrong


def exit_code(sides: tuple[Side, Side], book: Path | None, limit: float) -> int:
    """What the command exits with if B may take longer by this percentage."""
    options = ["--by", "measure", "--fail-above", str(limit)]
    options += [] if book is None else ["--history", str(book)]
    a, b = ([str(one.path) for one in side] for side in sides)
    known = {one.path: one.analysis for side in sides for one in side}
    as_known = patch.object(command, "analysis_of", lambda paths, *_, **__: known[paths[0]])
    with as_known, redirect_stdout(TextIOWrapper(BytesIO())), redirect_stderr(TextIOWrapper(BytesIO())):
        return commtrace(["compare", *options, *a, "--against", *b])


def main() -> None:
    asked = _asked()
    rng, found = random.Random(f"{asked.seed} {asked.ranks} {asked.jobs}"), list[dict[str, object]]()
    with tempfile.TemporaryDirectory() as folder:
        for cell in islice(drawn(rng, asked), asked.cells):
            job, ranks, cause, percent, other = cell
            about = f"{job}, {ranks} ranks, {cause} {percent} % {other}"
            measured = counts_of(cell, rng, asked.seed, Path(folder))
            if measured is None:
                print(f"{about}: cannot be planted", flush=True)
                continue
            counts, wrong = measured
            print(f"{about}: {'; '.join(wrong) or 'right'}", flush=True)
            # Numbers, as columns that quiet cells lack are summed only if they are some.
            found.append(cell._asdict() | {"cells": 1} | {each: int(count) for each, count in counts.items()})
    for by in ("job", "other"):
        counted = pd.DataFrame(found).drop(columns="ranks").groupby([by, "percent"]).sum(numeric_only=True)
        print("", counted.astype(int).to_string(line_width=1000), sep="\n")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cells", type=int, default=20, metavar="N", help="in a random order; none comes twice before all"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of order and captures (1)")
    parser.add_argument("--ranks", type=int, default=4, choices=SHAPES)
    parser.add_argument("--jobs", nargs="+", default=[*JOBS], choices=JOBS, metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--percents", nargs="+", type=int, default=PERCENT, metavar="P", help="0 plants nothing")
    parser.add_argument("--causes", nargs="+", metavar="CAUSE", help="such as 'links'; of every job those it has")
    parser.add_argument("--other", nargs="+", default=OTHERWISE, choices=OTHERWISE, help="how planted captures differ")
    return parser.parse_args()


if __name__ == "__main__":
    main()
