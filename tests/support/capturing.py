"""Starting Python as a user would from a checkout, and reading what a capture wrote."""

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm_python

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "profiling" / "scripts"


def environment(*folders: Path) -> dict[str, str]:
    """This process's environment, with the checkout and `folders` importable, and no rank or level of Kineto in it."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "KINETO_LOG_LEVEL")
    clean = {key: value for key, value in os.environ.items() if key not in ours}
    return clean | {"PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT))), "OMP_NUM_THREADS": "1"}


def three(out: Path, **options: Any) -> Any:
    """`capture()` of steps 2 to 4, where nothing else is asked for: a loop that is soon over."""
    from commtrace import capture

    return capture(out, **{"wait": 1, "active": 3, **options})


def python(*args: object, folders: tuple[Path, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `python args` to its end, where how it starts is not the question: torch is imported already."""
    return warm_python.run([*map(str, args)], cwd=ROOT, env=environment(*folders))


def fresh_python(*args: object, folders: tuple[Path, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `python args` to its end, from its first import."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=ROOT,
        env=environment(*folders),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@contextmanager
def begun(*args: object, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """`python args`, while it runs, with its output in pipes; ended with the block, whatever happens in that."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen([sys.executable, *map(str, args)], cwd=ROOT, env=environment(), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def torchrun(workers: int, *args: object) -> "subprocess.CompletedProcess[str]":
    """Run a script as `workers` ranks."""
    return python("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", *args)


def elsewhere(cwd: Path, *args: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run our command line from a folder that is not the checkout, with the checkout on no path but ours."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.path.append({str(ROOT)!r}); "
        "from commtrace.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    clean = {key: value for key, value in environment().items() if key != "PYTHONPATH"} | variables
    return warm_python.run(["-c", code, *map(str, args)], cwd=cwd, env=clean)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def metas(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The side file of every rank."""
    found = [json.loads(path.read_text()) for path in run_dir.glob("*.meta.json")]
    return {meta["rank"]: meta for meta in found}


def trace(path: Path) -> dict[str, Any]:
    """A trace as Python objects."""
    with gzip.open(path, "rt") as file:
        content: dict[str, Any] = json.load(file)
    return content


def traced_steps(content: dict[str, Any]) -> list[int]:
    """Numbers of the ProfilerStep annotations."""
    names = {str(event.get("name")) for event in content["traceEvents"]}
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def names_in_steps(content: dict[str, Any], prefixes: tuple[str, ...]) -> list[list[str]]:
    """For each traced step, in order: the names with these prefixes of what began inside it, one after another."""
    timed = sorted((event for event in content["traceEvents"] if event.get("ph") == "X"), key=lambda event: event["ts"])
    steps = [event for event in timed if event["name"].startswith("ProfilerStep#")]
    return [
        [
            event["name"]
            for event in timed
            if event["name"].startswith(prefixes) and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
        ]
        for step in steps
    ]


def leftovers(run_dir: Path) -> list[str]:
    """Temporary files that nobody removed."""
    return [path.name for path in run_dir.iterdir() if path.name.startswith(".") or path.name.endswith(".tmp")]
