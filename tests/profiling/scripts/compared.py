"""Captures of steps of known parts, by turns: `compared.py FOLDER TURNS`; 1 rank, no process group.

Writes FOLDER/<name>-<turn> for the names plain and again, which do the same, and sleep and layer, which do more. They
take turns, so that whatever else the machine does slows all of them alike. FOLDER/<name>-<turn>.json says how long each
traced step took by another clock, less what it slept, in ns.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from commtrace import capture

SLEEP_S = 0.15
STEPS = {"wait": 6, "warmup": 1, "active": 5}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("turns", type=int)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    wide = nn.Conv2d(8, 32, 3, padding=1)
    images, inputs = torch.randn(32, 8, 32, 32), torch.randn(256, 256)
    for turn in range(options.turns):
        for name in ("plain", "again", "sleep", "layer"):
            took_ns = []
            with capture(options.folder / f"{name}-{turn}", profile_memory=True, **STEPS) as session:
                for _ in range(sum(STEPS.values())):
                    begun_ns = time.perf_counter_ns()
                    for _ in range(5):
                        model(inputs).sum().backward()
                    if name == "layer":
                        for _ in range(10):
                            wide(images)
                    took_ns.append(time.perf_counter_ns() - begun_ns)
                    if name == "sleep":
                        time.sleep(SLEEP_S)
                    session.step()
            (options.folder / f"{name}-{turn}.json").write_text(json.dumps(took_ns[-STEPS["active"] :]))


if __name__ == "__main__":
    main()
