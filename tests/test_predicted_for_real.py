"""What is predicted from one real capture, against the capture of what was predicted: gloo, two or four processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from capturing import torchrun

from analysis import analyse
from analysis.results.analysis import Analysis

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from profiling import capture

out, sleep, cap, width, layers, batch = sys.argv[1], *map(float, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [torch.nn.Linear(int(width), int(width)) for _ in range(int(layers))]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(int(batch), int(width))
with capture(out, wait=2, warmup=1, active=8, model=model, batch_size=len(batch)) as session:
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if dist.get_rank() == 1 and sleep:
            time.sleep(sleep)
        loss.backward()
        optimizer.step()
        session.step()
dist.destroy_process_group()
"""
LOADING = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from profiling import capture

out, sleep = sys.argv[1], float(sys.argv[2])

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 12
    def __getitem__(self, at):
        if dist.get_rank() == 1 and sleep and at % 16 == 0:
            time.sleep(sleep)
        return torch.full((512,), float(at))

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with capture(out, wait=2, warmup=1, active=8, model=model, batch_size=16) as session:
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=16):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        session.step()
dist.destroy_process_group()
"""
SMALL, LARGE = (512, 4, 16), (1024, 8, 64)
CAPS = (1, 5, 25, 100)


def captured(folder: Path, name: str, *, ranks: int = 2, sleep: float = 0, cap: float = 25, size=SMALL) -> Analysis:
    pytest.importorskip("torch")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = torchrun(ranks, script, folder / name, sleep, cap, *size)
    assert done.returncode == 0, done.stderr
    return analyse(folder / name, details=True)


def step_ns(analysis: Analysis) -> float:
    return float(analysis.breakdown_steps["window_ns"].mean())


def test_a_sleep_taken_out(tmp_path: Path) -> None:
    late, calm = captured(tmp_path, "late", sleep=0.1, cap=100), captured(tmp_path, "calm", cap=100)
    [row] = late.predict({"without_straggler": 1}).to_dict("records")
    assert step_ns(late) > 3 * step_ns(calm)
    # Of the sleep, that is; two captures without it differ by as much.
    assert abs(row["step_ns"] - step_ns(calm)) < 0.1 * (step_ns(late) - step_ns(calm)) + 0.1 * step_ns(calm)


def test_a_slow_loader_taken_out(tmp_path: Path) -> None:
    """Of the time that a batch takes, 0.1 ms stays, and where nothing is slow it takes longer than that."""
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(LOADING)
    for name, sleep in (("late", 0.1), ("calm", 0)):
        done = torchrun(2, script, tmp_path / name, sleep)
        assert done.returncode == 0, done.stderr
    late, calm = (analyse(tmp_path / name, details=True) for name in ("late", "calm"))
    [row] = late.predict({"no_data_wait": True}).to_dict("records")
    assert step_ns(late) > 3 * step_ns(calm)
    assert abs(row["step_ns"] - step_ns(calm)) < 0.1 * (step_ns(late) - step_ns(calm)) + 0.1 * step_ns(calm)


def test_other_buckets(tmp_path: Path) -> None:
    """Each from each. A machine that others use is not equally fast in all four captures, so half may be wrong.

    Where it is quiet, all sixteen are right: docs/predict.md.
    """
    runs = {cap: captured(tmp_path, f"cap{cap}", cap=cap, size=LARGE) for cap in CAPS}
    right = 0
    for run in runs.values():
        for cap, row in zip(CAPS, run.predict(*({"bucket_mb": cap} for cap in CAPS)).to_dict("records"), strict=True):
            true = step_ns(runs[cap])
            right += row["low_ns"] <= true <= row["high_ns"] or abs(row["step_ns"] / true - 1) < 0.15
    assert right >= 8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 4, reason="four ranks on fewer cores compute longer than two do")
def test_more_ranks(tmp_path: Path) -> None:
    two, four = (captured(tmp_path, f"w{ranks}", ranks=ranks, size=(128, 4, 8)) for ranks in (2, 4))
    [row] = two.predict({"ranks": 4}).to_dict("records")
    assert row["low_ns"] <= step_ns(four) <= row["high_ns"]
