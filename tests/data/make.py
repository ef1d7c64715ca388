"""Write the traces of this folder: `python tests/data/make.py generated` the same bytes again, `recorded` new captures.

Afterwards `python -m pytest tests/analysis/test_golden.py --update-golden`, and look at what has changed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path("tests/data")
WORLDS = ("two hosts", "periodic", "straggler", "rooted", "pipeline", "hang")
SMALLER = {"pipeline": {"hosts": 1, "gpus": 4}}


def generated() -> None:
    """Worlds of the simulator, with NCCL (tests/support/simulator/README.md), and one rank alone."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
    import host_bound
    from simulator import PRESETS, simulate

    host_bound.trace().write(_emptied("host-bound"))

    for name in WORLDS:
        simulate(replace(PRESETS[name], **SMALLER.get(name, {}))).write(_emptied("nccl-" + name.replace(" ", "-")))


def recorded() -> None:
    """Two ranks on this machine, with gloo."""
    begin = [
        sys.executable,
        "-m",
        "profiling",
        "run",
        "--workers",
        "2",
        "--wait",
        "1",
        "--warmup",
        "1",
        "--active",
        "3",
    ]
    training = _emptied("gloo-training")
    _run(*begin, "--out", str(DATA), "--run-name", training.name, str(DATA / "training.py"))
    collectives = _emptied("gloo-collectives")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    _run(sys.executable, *launcher, str(DATA / "collectives.py"), str(DATA / collectives.name))
    for path in (*training.iterdir(), *collectives.iterdir()):
        _without_root(path)


def _without_root(path: Path) -> None:
    """Where the checkout is, is nobody's to know: paths in the file begin at its root."""
    own, content = f"{ROOT}/".encode(), path.read_bytes()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(gzip.decompress(content).replace(own, b""), mtime=0))
    else:
        path.write_bytes(content.replace(own, b""))


def _emptied(name: str) -> Path:
    folder = ROOT / DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _run(*command: str) -> None:
    environment = os.environ | {"PYTHONPATH": ".", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    {"generated": generated, "recorded": recorded}[sys.argv[1]]()
