"""Side files, sweeps, trainings, ceilings and timings with mistakes in them: `python tests/attacks/side_files.py`.

Bytes and values are changed, and files replaced by pipes, devices, folders, links and giants. Each time the command
does its work, or says in one line what is wrong: no traceback, and nobody waits.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from attacking import called, complaint, mutated, run_attack
from builders import MS, Collective, write_run
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace.contract.comms import COMMS_TOOL

_ODD: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, 1 << 20, 1 << 24, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 1e308, "", "7", "x",
    "\0", "é\n", "../..", "timed", [], [[]], [1, "a"], {}, {"a": {}}, [None], [[1, 2], 3], "x" * 100_000,
]  # fmt: skip
_TEXT = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid   1 on  node device  0 [0x00] GPU
#  Rank  1 Group  0 Pid   2 on  node device  1 [0x00] GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
 1000000000     250000000     float     sum      -1    10000  100.00  100.00      0    10000  100.00  100.00      0
"""
_CSV = """model,parallel,workers,batch_size_per_rank,epoch_s,dataset_samples
resnet18,ddp,1,32,10.5,50000
resnet18,ddp,2,32,6.25,50000
"""


def targets(folder: Path) -> list[tuple[list[object], Path]]:
    """Commands, and a file that each of them reads."""
    run, sweep = folder / "run", write_sweep(folder / "sweep", [Cell(1), Cell(2, epoch_s=6.0)])
    write_run(run, 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000_000)])
    training = write_training(folder / "training", Trained(scores=[(1.2, 0.5), (0.9, 0.7)]))
    (run / "run.json").write_text(json.dumps({"world_size": 2, "config": {"model": "resnet18", "lr": 0.1}}))
    for path in sorted(run.glob("*.pt.trace.json*")):
        worker = path.name.partition(".")[0]
        rank = int(worker.rpartition("_")[2])
        (run / f"{worker}.meta.json").write_text(json.dumps(_side(rank), indent=1))
    ceiling, of_others, text, timings = (folder / n for n in ("comms.json", "nccl.json", "nccl.txt", "timings.csv"))
    place = {"time": 10_000.0, "alg_bw": 100.0, "nwrong": 0}
    results = [{"collective": "all_reduce", "size": 10**9, "out_of_place": place, "in_place": place}]
    ceiling.write_text(json.dumps({"tool": COMMS_TOOL, "world_size": 2, "results": results, "complete": True}))
    config = {"nthreads": 1, "ngpus": 1, "devices": [{"group": 0}, {"group": 0}]}
    of_others.write_text(json.dumps({"args": ["all_reduce_perf"], "config": config, "results": results}))
    text.write_text(_TEXT)
    timings.write_text(_CSV)
    cell = sweep / Cell(2).run
    return [
        *(
            ([*command.split(), run], file)
            for file in (run / "run.json", *run.glob("*.meta.json"))
            for command in _COMMANDS
        ),
        *(
            (["table", "scaling", sweep], file)
            for file in (sweep / "sweep.json", cell / "run.json", *cell.glob("*.meta.json"))
        ),
        *((["table", "training", training], training / name) for name in ("training.json", "run.json")),
        *((["bandwidth", "--ceiling", file, run], file) for file in (ceiling, of_others, text)),
        (["table", "scaling", timings], timings),
    ]


_COMMANDS = ("summary", "breakdown", "table clocks")


def _side(rank: int) -> dict[str, Any]:
    probe = {"at": "start", "unix_ns": 10**18, "offset_ns": 0, "uncertainty_ns": 1000, "against_rank": 0}
    group = {"name": "0", "desc": "default_pg", "backend": "nccl", "ranks": [0, 1]}
    return {
        "schema_version": 1, "rank": rank, "local_rank": rank, "world_size": 2, "host": "node", "complete": True,
        "reason": None, "steps": [{"step": n, "phase": "active", "dur_ns": 10**8} for n in range(3)],
        "clock_probe": [probe, probe | {"at": "end"}], "process_groups": [group], "versions": {"torch": "2.13.0"},
        "machine": {"boot_id": "abc"}, "device": {"name": "H100"},
    }  # fmt: skip


def with_odd_value(text: bytes, chance: random.Random) -> bytes:
    """JSON with another value somewhere."""
    try:
        content = json.loads(text)
    except ValueError:
        return mutated(text, chance)
    inner = content
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            break
        key = chance.choice(keys)
        if isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.75:
            inner = inner[key]
            continue
        inner[key] = chance.choice(_ODD)
        break
    return json.dumps(content).encode()


def put_in_place(path: Path, chance: random.Random) -> str:
    """Something that is no such file, in its place; what it is."""
    kind = chance.choice(
        ("pipe", "zero", "full", "folder", "link to itself", "dangling link", "socket", "giant", "none")
    )
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("zero", "full"):
        path.symlink_to(f"/dev/{kind}")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(os.path.relpath(path))
    elif kind == "giant":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    return kind


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, aims = random.Random(seed), targets(folder)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(tries):
        arguments, path = aims[number % len(aims)]
        sound = path.read_bytes()
        how = chance.randrange(8)
        if how == 0:
            what = put_in_place(path, chance)
        else:
            what = "changed bytes" if how < 4 else "another value"
            path.write_bytes(mutated(sound, chance) if how < 4 else with_odd_value(sound, chance))
        keep = ["--keep-going"] if chance.random() < 0.3 else []
        code, out, err = called(*arguments, *keep, "-f", chance.choice(("table", "csv", "json")))
        problem = complaint(code, out, err)
        counts["refused" if code == 1 else "read"] += 1
        if problem:
            wrong.append(f"try {number}, {what} in {path.name}, {arguments[0]}: {problem}")
        with suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(sound)
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
