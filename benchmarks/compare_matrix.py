"""How often `compare` finds a planted change, and its cause, in simulated captures. See README.md beside this.

python benchmarks/compare_matrix.py [CELLS [SEED [RANKS [JOB [PERCENTS [CAUSES]]]]]]

A cell is a job of some ranks and something planted into its captures: a cause that makes steps 1, 2, 5 or 10 % longer,
or nothing. With PERCENTS (`5,10`) and CAUSES (`links,a kernel`), only these; none comes twice before all of a job came.
Three captures without it are compared with three that have it, either way round, and one with one by a history of six.
Every capture has another seed. In some cells kernels have other names, the captures more steps or another GPU, one
capture is cold, or the first steps of each are. What compare should say comes from what was planted; exit codes are
those of `commtrace compare --fail-above`, above half the change or twice as much, for captures that are read already:
reading them took most of the time of 64 ranks.
"""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

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
OTHERWISE = ("", "", "renamed", "steps", "cold", "warming")
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
    this, other = f"rank {rank} as fast as the others", "host node01 as fast as the others"

    def put(kind: str, on: tuple[int, ...], at: float) -> Callable[[World, float], World]:
        return partial(injected, kind=kind, ranks=on, at=at)

    found = {
        "a kernel of a rank": Cause(put("slower", (rank,), 0.4), (this,)),
        "a throttled rank": Cause(put("throttled", (rank,), 0.4), (this,)),
        "a throttled host": Cause(put("throttled", host, 0.4), (other, f"ranks {str(host)[1:-1]} as fast")),
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


def cell(
    rng: random.Random,
    seed: int,
    ranks: int,
    job: str,
    name: str,
    percent: int,
    tally: Counter[tuple[object, ...]],
    place: Path,
) -> str | None:
    """Count what is found of a cell, drawn but for what is planted, and say what is wrong; None if it cannot be."""
    cause = causes(job, ranks, rng.randrange(1, ranks))[name]
    back, other = rng.random() < 0.5, rng.choice(OTHERWISE)
    first = 1000 * seed + rng.randrange(100, 1000 - CAPTURES)
    us = amount(world_of(job, ranks, first), cause, percent) if percent else 0.0
    cold_us = amount(world_of(job, ranks, first), all_kernels(), COLD_PERCENT) if other == "cold" else 0.0
    if us is None or cold_us is None:
        return None

    def planted(number: int) -> World:
        world = world_of(job, ranks, first + number, MORE_STEPS if other == "steps" else STEPS)
        world = changed(world, renamed) if other == "renamed" else world
        if other == "cold" and not number:
            world = all_kernels().plant(world, cold_us)
        if other == "warming":
            slow = Injection("throttled", tuple(range(ranks)), (1, 2), 0.5 * step_us(world))
            world = replace(world, injections=(slow,))
        return cause.plant(world, us) if us else world

    plain, book = without(job, ranks, seed, place)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        with_it = tuple(captured(planted(number), Path(folder) / f"planted-{number}") for number in range(CAPTURES))
        sides = (with_it, plain) if back else (plain, with_it)
        change, limit = -percent if back else percent, percent * rng.choice((0.5, 2.0)) or QUIET_LIMIT
        several, wrong = _counted("3 against 3", sides, None, change, limit, tally)
        wrong += _counted("1 against 1", (sides[0][-1:], sides[1][-1:]), book, change, limit, tally)[1]
    if percent:
        said = [f"{row['what']}: {row['cause']}" for row in records(several.what_differs)[:1]]
        is_right = any(words in each for words in cause.named for each in said)
        tally["3 against 3", percent, "cause right"] += is_right
        wrong += [] if is_right else [f"cause {several.cause}"]
    if other in ("cold", "warming"):
        named = several.decision.apart if other == "cold" else several.decision.warming
        is_named = len(named) == (1 if other == "cold" else CAPTURES)
        tally["3 against 3", percent, "cold"] += 1
        tally["3 against 3", percent, "cold named"] += is_named
        wrong += [] if is_named else [f"named {named}"]
    about = f"{job}, {ranks} ranks, {name} {percent} %{' less' if back else ''} {other}".rstrip()
    return f"{about}: {'; '.join(wrong) or 'right'}"


def _counted(
    way: str,
    sides: tuple[Side, Side],
    book: Path | None,
    change: int,
    limit: float,
    tally: Counter[tuple[object, ...]],
) -> tuple[Comparison, list[str]]:
    """Count what is decided on a change by this percentage, and by the command above a limit; say what is wrong."""
    of_a, of_b = (tuple(one.analysis for one in side) for side in sides)
    both = Comparison(of_a, of_b, history=None if book is None else read_history(book))
    wanted, percent = "alike or open" if not change else "longer" if change > 0 else "shorter", abs(change)
    outcome = both.decision.outcome.value
    tally[way, percent, "cells"] += 1
    tally[way, percent, "found"] += outcome in ("longer", "shorter") if not change else outcome == wanted
    measured = f"{100 * (both.decision.change_frac or 0):+.2f} %, runs {100 * both.decision.runs_spread_frac:.2f} %"
    wrong = [] if outcome in wanted.split(" or ") else [f"{way} {outcome} {measured}"]
    code, right = exit_code(sides, book, limit), 3 if change > limit else 0
    tally[way, percent, "exit wrong"] += code not in (right, CANNOT_TELL)
    tally[way, percent, f"exit {CANNOT_TELL}"] += code == CANNOT_TELL
    wrong += [] if code in (right, CANNOT_TELL) else [f"{way} exit {code} above {limit:g} % {measured}"]
    return both, wrong


def exit_code(sides: tuple[Side, Side], book: Path | None, limit: float) -> int:
    """What the command exits with if B may take longer by this percentage."""
    options = ["--by", "measure", "--fail-above", str(limit)]
    options += [] if book is None else ["--history", str(book)]
    a, b = ([str(one.path) for one in side] for side in sides)
    known = {one.path: one.analysis for side in sides for one in side}
    as_known = patch.object(command, "analysis_of", lambda paths, *_, **__: known[paths[0]])
    with as_known, redirect_stdout(TextIOWrapper(BytesIO())), redirect_stderr(TextIOWrapper(BytesIO())):
        return commtrace(["compare", *options, *a, "--against", *b])


def main(
    cells: int = 20, seed: int = 1, ranks: int = 4, job: str = "", percents: str = "", causes_of: str = ""
) -> None:
    rng, tally, done = random.Random(f"{seed} {ranks} {job}"), Counter[tuple[object, ...]](), 0
    planted = [int(each) for each in percents.split(",") if each] or PERCENT
    left: dict[str, list[tuple[str, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while done < cells:
            of = job or rng.choice(list(JOBS))
            if not left.get(of):
                names = causes_of.split(",") if causes_of else list(causes(of, ranks, 1))
                left[of] = rng.sample(every := [*product(names, planted)], len(every))
            said = cell(rng, seed, ranks, of, *left[of].pop(), tally, Path(folder))
            if said is not None:
                done += 1
                print(said, flush=True)
    columns = ("cells", "found", "cause right", "exit wrong", "exit 4", "cold", "cold named")
    print(f"{'':12} {'planted':>8}", *(f"{column:>11}" for column in columns))
    for way, percent in sorted({(str(key[0]), int(str(key[1]))) for key in tally}):
        numbers = (tally[way, percent, column] for column in columns)
        print(f"{way:12} {percent:6} %", *(f"{number:11}" for number in numbers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:7])
