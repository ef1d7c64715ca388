"""Small packed files that hold very much: `python tests/attacks/memory.py --tries 20`.

Each is read with a limit. It is refused, or read, within the limit and what Python, numpy and pandas take by
themselves; and always before the machine has no memory left.
"""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attacking import ROOT, run_attack

OWN_MB = 150  # of libraries, and of one chunk taken apart
_BEGIN = b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"pid":0,"tid":7}'
_SHAPES = b",".join([b"[1]"] * 100)

EVENTS: dict[str, Callable[[int], bytes]] = {
    "kernels": lambda n: b'{"ph":"X","cat":"kernel","name":"k","ts":%d,"dur":1}' % n,
    "names": lambda n: b'{"ph":"X","cat":"kernel","name":"k%d","ts":%d,"dur":1}' % (n, n),
    "long names": lambda n: b'{"ph":"X","cat":"kernel","name":"%s%d","ts":%d,"dur":1}' % (b"k" * 1000, n, n),
    "calls": lambda n: b'{"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce","ts":%d,"dur":1,"args":'
    b'{"Collective name":"allreduce"}}' % n,
    "records": lambda n: b'{"ph":"X","cat":"cpu_op","name":"record_param_comms","ts":%d,"dur":1,"args":'
    b'{"Collective name":"allreduce"}}' % n,
    "steps": lambda n: b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","ts":%d,"dur":1}' % (n, n),
    "launches": lambda n: b'{"ph":"X","cat":"cuda_runtime","name":"l","ts":1,"dur":1,"args":{"correlation":%d}}' % n,
    "shapes": lambda n: b'{"ph":"X","cat":"user_annotation","name":"nccl:a","ts":%d,"dur":1,"args":{"Input Dims":[%s]}}'
    % (n, _SHAPES),
    "operators": lambda n: b'{"ph":"X","cat":"cpu_op","name":"o%d","ts":%d,"dur":1}' % (n, n),
}  # fmt: skip


def write(path: Path, kind: str, megabytes: int) -> None:
    """A packed trace of so many bytes of one kind of event."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(_BEGIN)
        number = written = 0
        while written < megabytes * 1_000_000:
            block = b"".join(b"," + EVENTS[kind](number + k) for k in range(1000))
            written += file.write(block)
            number += 1000
        file.write(b"]}")


def read(path: Path, command: str, limit_mb: int) -> tuple[int, int, str]:
    """Exit code, peak memory in MB, and the last line said, of one process that reads the file."""
    arguments = ["-m", "analysis", command, "--no-cache", "--workers", "1", "--memory", str(limit_mb / 1000), str(path)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").splitlines()
    return process.returncode, usage.ru_maxrss // 1000, lines[-1] if lines else ""


def attack(folder: Path, tries: int, seed: int, megabytes: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; the largest file has so many `megabytes`, unpacked."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    path = folder / "rank0.pt.trace.json.gz"
    for number in range(tries):
        kind = chance.choice(sorted(EVENTS)) if tries < len(EVENTS) else sorted(EVENTS)[number % len(EVENTS)]
        limit_mb, command = chance.choice((30, 100, 200)), chance.choice(("breakdown", "summary", "kernels"))
        write(path, kind, chance.randint(megabytes // 4, megabytes))
        code, peak_mb, last = read(path, command, limit_mb)
        refused = code == 1 and "more with --memory GB" in last
        counts["refused" if refused else "read"] += 1
        if not (code == 0 or refused) or peak_mb > limit_mb + OWN_MB:
            wrong.append(f"try {number} of seed {seed}: {kind}, {command}, {limit_mb} MB: {code}, {peak_mb} MB, {last}")
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__, megabytes=200))
