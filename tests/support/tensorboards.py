"""A real TensorBoard on a folder, and what its addresses answer."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120
PROFILER = "data/plugin/pytorch_profiler"
"""Where torch-tb-profiler answers."""


class TensorBoard(str):
    """The address of a running one, ending with a slash; `said` are lines of its stderr, all of them once it ended."""

    said: list[str]


@contextmanager
def tensorboard(logdir: Path, environment: Mapping[str, str] | None = None) -> Iterator[TensorBoard]:
    """A running one, in a `with` block."""
    place = ("--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1")
    command = [sys.executable, "-m", "tensorboard.main", *place]
    env = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        found = None
        try:
            while found is None and (line := server.stderr.readline()):
                said.append(line)
                found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found is not None, "".join(said)
            address = TensorBoard(found[0])
            address.said = said
            yield address
        finally:
            server.terminate()
            said += server.stderr.readlines()


def content(url: str) -> Any:
    """What an address answers, as JSON says."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def once_loaded(url: str, ready: str) -> Any:
    """What the address answers once it holds `ready`: runs are read in the background."""
    answer: Any = None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            answer = content(url)
        except (urllib.error.URLError, ValueError):
            answer = None
        if ready in json.dumps(answer):
            return answer
        time.sleep(0.5)
    raise AssertionError(f"{url} never showed {ready}; last answer: {answer}")
