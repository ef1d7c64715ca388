"""How often `compare` is wrong, on captures of two gloo ranks. See README.md beside this.

python benchmarks/compare_pairs.py [PAIRS [CAPTURES [STEPS]]]

For each pair, three configurations take turns: A, the same again, and one whose steps compute 10 % more. A false alarm
is a significant difference between the equal ones; a miss is a slower one that is not found so. Every capture is made
by processes of its own, forked from this one, which has torch imported and runs nothing itself; STEPS of it are timed.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch._dynamo  # which DDP imports, for most of the time that a short capture takes
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace import analyse, capture  # noqa: E402
from commtrace.analysis.comparison.analysis import Comparison, Judgement  # noqa: E402
from commtrace.analysis.core.schema import records  # noqa: E402
from commtrace.profiling.base.schedule import TRAILING_STEPS  # noqa: E402

RANKS = 2
MORE_FRAC = 0.1
ROUNDS = {"A": 800, "again": 800, "slower": 880}  # of work in a step: MORE_FRAC more of it
SCHEDULE = {"wait": 2, "warmup": 1, "active": 1}


def rank_of_capture(folder: Path, rank: int, rounds: int, steps: int) -> None:
    """Train as one rank, in a forked process."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder.with_suffix(".store")), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256))
    inputs = torch.ones(64, 256)
    with capture(folder, **SCHEDULE) as session:
        for _ in range(sum(SCHEDULE.values()) + steps):
            for _ in range(rounds - 1):
                model.module(inputs)
            model(inputs).sum().backward()
            session.step()
    dist.destroy_process_group()


def captured(folder: Path, rounds: int, steps: int) -> Path:
    """A capture by new processes. Raises RuntimeError."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if not child:
            code = 1
            try:
                rank_of_capture(folder, rank, rounds, steps)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    if sum(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError(f"{folder}: a rank failed")
    return folder


def judged(a: list[Path], b: list[Path]) -> tuple[bool, Judgement, float]:
    """Whether B differs significantly, what a limit of half the change says of it, and which change would be seen."""
    sides = [tuple(analyse(path, details=True, workers=1) for path in side) for side in (a, b)]
    found = Comparison(*sides)
    step = records(found.comparison)[0]
    return bool(step["significant"]), found.slower_by(MORE_FRAC / 2)[0], step["seen_frac"]


def main(pairs: int, captures: int, steps: int) -> None:
    seen, counts = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(1, pairs + 1):
            place = Path(folder) / str(pair)
            place.mkdir()
            sides: dict[str, list[Path]] = {name: [] for name in ROUNDS}
            for turn in range(captures):
                for name, rounds in ROUNDS.items():
                    sides[name].append(captured(place / f"{name}-{turn}", rounds, steps))
            differs, judgement, of_equal = judged(sides["A"], sides["again"])
            found, gate, _ = judged(sides["A"], sides["slower"])
            shutil.rmtree(place)
            seen.append(of_equal)
            counts += Counter(
                {"false alarms": differs, "misses": not found, "could have seen it": of_equal <= MORE_FRAC}
            )
            counts += Counter({f"gate, equal: {judgement.value}": 1, f"gate, slower: {gate.value}": 1})
            middle = sorted(seen)[len(seen) // 2]
            told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            print(
                f"{pair} pairs of {captures} captures of {steps} steps: {told}; seen: median {middle:.1%}", flush=True
            )


if __name__ == "__main__":
    given, defaults = [int(arg) for arg in sys.argv[1:]], (100, 8, TRAILING_STEPS)
    main(*(*given, *defaults[len(given) :]))
