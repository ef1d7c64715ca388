"""How often `compare` finds a planted change, and its cause, in simulated captures. See README.md beside this.

python benchmarks/compare_matrix.py [CELLS [SEED [RANKS [JOB]]]]

A cell is a job of some ranks and something planted into its captures: a cause that makes steps 1, 2, 5 or 10 % longer,
or nothing. Three captures without it are compared with three that have it, either way round, and one with one by a
history of six. Every capture has another seed. In some cells kernels have other names, the captures more steps, one
capture is cold, or the first steps of each are. What compare should say comes from what was planted.
"""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from simulator import Injection, Window, World, simulate  # noqa: E402
from simulator.ops import Block, Comm, Cpu, Kernel, Op, Wait  # noqa: E402
from simulator.pipelines import three_d  # noqa: E402
from simulator.programs import ddp, fsdp, moe, tp  # noqa: E402
from simulator.world import Hardware, Place, Program  # noqa: E402

from commtrace import Analysis, Comparison, analyse  # noqa: E402
from commtrace.analysis.comparison.analysis import Judgement  # noqa: E402
from commtrace.analysis.comparison.history import History, keep_in_history, read_history  # noqa: E402
from commtrace.analysis.core.schema import records  # noqa: E402

SHAPES = {4: (2, 2), 8: (2, 4), 64: (8, 8)}
PERCENT = (0, 1, 2, 5, 10)
OTHERWISE = ("", "", "renamed", "steps", "cold", "warming")
STEPS, MORE_STEPS, CAPTURES, PAST = 10, 18, 3, 6
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
        "all kernels": Cause(
            lambda w, us: changed(w, partial(longer, kernel="", times=1 + us / 1000)),
            ("every kernel takes", "everything takes"),
        ),
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


def captured(world: World) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        simulate(world).write(Path(folder))
        return analyse(folder, details=True, workers=1)


@cache
def without(job: str, ranks: int, seed: int) -> tuple[tuple[Analysis, ...], History]:
    """Captures with nothing planted, and a history of others."""
    every = [captured(world_of(job, ranks, 1000 * seed + number)) for number in range(CAPTURES + PAST)]
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "history.jsonl"
        for number, one in enumerate(every[CAPTURES:]):
            keep_in_history(book, one, Path(folder) / str(number))
        return tuple(every[:CAPTURES]), read_history(book)


def cell(rng: random.Random, seed: int, ranks: int, job: str, tally: Counter[tuple[object, ...]]) -> str | None:
    """Draw a cell, count what is found of it, and say what is wrong; None if it cannot be planted."""
    name, cause = rng.choice(list(causes(job, ranks, rng.randrange(1, ranks)).items()))
    percent, back, other = rng.choice(PERCENT), rng.random() < 0.5, rng.choice(OTHERWISE)
    first = 1000 * seed + rng.randrange(100, 1000 - CAPTURES)
    us = amount(world_of(job, ranks, first), cause, percent) if percent else 0.0
    if us is None:
        return None

    def planted(number: int) -> World:
        world = world_of(job, ranks, first + number, MORE_STEPS if other == "steps" else STEPS)
        world = changed(world, renamed) if other == "renamed" else world
        if other == "cold" and not number:
            world = changed(world, partial(longer, kernel="", times=1.3))
        if other == "warming":
            slow = Injection("throttled", tuple(range(ranks)), (1, 2), 0.5 * step_us(world))
            world = replace(world, injections=(slow,))
        return cause.plant(world, us) if us else world

    plain, history = without(job, ranks, seed)
    with_it = tuple(captured(planted(number)) for number in range(CAPTURES))
    sides = (with_it, plain) if back else (plain, with_it)
    several, one = Comparison(*sides), Comparison(sides[0][-1:], sides[1][-1:], history=history)
    wrong = [
        *_counted("3 against 3", several, percent, back, tally),
        *_counted("1 against 1", one, percent, back, tally),
    ]
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


def _counted(way: str, both: Comparison, percent: int, back: bool, tally: Counter[tuple[object, ...]]) -> list[str]:
    """Count what is decided, and say what is wrong with it."""
    wanted = "alike or open" if not percent else "shorter" if back else "longer"
    outcome, limit = both.decision.outcome.value, percent / 200 or 0.05
    judged = both.slower_by(limit)[0]
    never = Judgement.within if wanted == "longer" else Judgement.slower
    tally[way, percent, "cells"] += 1
    tally[way, percent, "found"] += outcome in ("longer", "shorter") if not percent else outcome == wanted
    tally[way, percent, "exit wrong"] += judged is never
    tally[way, percent, "exit 4"] += judged is Judgement.unknown
    change = f"{100 * (both.decision.change_frac or 0):+.2f} %, runs {100 * both.decision.runs_spread_frac:.2f} %"
    wrong = [] if outcome in wanted.split(" or ") else [f"{way} {outcome} {change}"]
    return [*wrong, *([f"exit {judged.value}"] if judged is never else [])]


def main(cells: int = 20, seed: int = 1, ranks: int = 4, job: str = "") -> None:
    rng, tally, done = random.Random(f"{seed} {ranks} {job}"), Counter[tuple[object, ...]](), 0
    while done < cells:
        said = cell(rng, seed, ranks, job or rng.choice(list(JOBS)), tally)
        if said is not None:
            done += 1
            print(said, flush=True)
    columns = ("cells", "found", "cause right", "exit wrong", "exit 4", "cold", "cold named")
    print(f"{'':12} {'planted':>8}", *(f"{column:>11}" for column in columns))
    for way, percent in sorted({(str(key[0]), int(str(key[1]))) for key in tally}):
        numbers = (tally[way, percent, column] for column in columns)
        print(f"{way:12} {percent:6} %", *(f"{number:11}" for number in numbers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:5])
