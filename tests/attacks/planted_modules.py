"""Modules that lie where a user works: `python tests/attacks/planted_modules.py --tries 12 --seed 0`.

Beside a downloaded run lie files with the names of libraries and of our packages, each of which leaves a mark when it
is imported. A program of ours that is installed, or another that uses ours, is started there; what it prints or writes
is there, and no mark is.
"""

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from attacking import ROOT, run_attack

NAMES = (
    *(
        "typer",
        "click",
        "rich",
        "pandas",
        "numpy",
        "msgspec",
        "jinja2",
        "isal",
        "torch",
        "torchvision",
        "json",
        "random",
    ),
    *("analysis", "profiling", "commtrace", "sitecustomize", "usercustomize", "runpy", "signal"),
)
# As an installed program begins: the folder of the program is on the path, and not the one where it is called.
BEGIN = f"import sys; sys.path[0] = {str(ROOT)!r}; "
TAB = (
    BEGIN + "from commtrace.analysis.tensorboard.plugin import Reports; from pathlib import Path; "
    "print(len(Reports().page(Path('run'))))"
)
WORKERS = (
    BEGIN + "import threading; from commtrace.analysis.recording.options import ReadOptions, ReadSizes; "
    "ReadOptions.__init__.__kwdefaults__['sizes'] = ReadSizes(process_bytes=0); "
    "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
    "from commtrace.cli import main; sys.exit(main(['breakdown', '--no-cache', '--workers', '2', 'run']))"
)
CAPTURE = BEGIN + "from commtrace.cli import main; sys.exit(main(sys.argv[1:]))"
SMALL = ("--device", "cpu", "--out", "made", "--run-name", "x")
TRAIN = ("train", "--workers", "2", "--batch-size", "1", "--wait", "1", "--active", "1", *SMALL)
COMMS = ("comms", "all_reduce", "--workers", "2", "--max-bytes", "64K", *SMALL)
SMALLEST = ("--batch-size", "1", "--channels", "1", "--image-size", "8", "--warmup", "0", "--iters", "1")
CAPACITY = ("capacity", "--memory-limit", "1GB", "--stack", "1+1", *SMALLEST, *SMALL)
STARTS: dict[str, tuple[str, ...]] = {
    "tab": (TAB,), "workers": (WORKERS,), "train": (CAPTURE, *TRAIN), "comms": (CAPTURE, *COMMS),
    "capacity": (CAPTURE, *CAPACITY), "run": (CAPTURE, "run", "--workers", "1", "--out", "made", "there/script.py"),
}  # fmt: skip

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for number in range(tries):
        start = list(STARTS)[number % len(STARTS)]
        place = folder / str(number)
        shutil.copytree(ROOT / "tests/data/nccl-straggler", place / "run")
        planted = chance.sample(NAMES, chance.randint(3, len(NAMES)))
        for name in planted:
            plant(place, name, as_package=chance.random() < 0.3)
        (place / "there").mkdir()
        (place / "there/beside.py").write_text("SAID = 'beside the script'\n")
        (place / "there/script.py").write_text("import beside\nprint(beside.SAID)\n")
        done = subprocess.run(
            [sys.executable, "-c", *STARTS[start]], cwd=place, env=ENVIRONMENT,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        counts[start] += 1
        marks = sorted(mark.name for mark in place.glob("*.imported"))
        wrong += [f"try {number}, {start}: {', '.join(marks)}"] * bool(marks)
        if done.returncode or not done.stdout.strip() or (start == "run" and "beside the script" not in done.stdout):
            wrong.append(f"try {number}, {start}: exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return counts, wrong


def plant(place: Path, name: str, *, as_package: bool) -> None:
    """A module that leaves a mark, and then fails."""
    file = place / name / "__init__.py" if as_package else place / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    mark = str(place / f"{name}.imported")
    file.write_text(f"open({mark!r}, 'w').close()\nraise ImportError('planted')\n")


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
