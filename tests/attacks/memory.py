"""Small files that ask for very much: `python tests/attacks/memory.py --tries 60 --kind dump`.

Each is read with a limit. It is refused, or read, within 1.2 times the limit beside what Python, numpy and pandas take
by themselves; and within two minutes of CPU time. `--kind` is kineto, dump, recording, nsight, inspector or beside.
"""

from __future__ import annotations

import gzip
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from attacking import ROOT, run_attack
from bombs import BOMBS, Maker

OWN_MB = 150  # of libraries, and of one chunk taken apart
_MOST_BYTES, _MOST_S, _LONG_S = 6 << 30, 240, 120  # a busy machine needs 80 s for the longest
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
    "long operators": lambda n: b'{"ph":"X","cat":"cpu_op","name":"%s%d","ts":%d,"dur":1}' % (b"o" * 1000, n, n),
    "long lists": lambda n: b'{"ph":"X","cat":"user_annotation","name":"nccl:a","ts":%d,"dur":1,"args":'
    b'{"Input Dims":[%s[]]}}' % (n, b"[]," * 5000),
    "long ranks": lambda n: b'{"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce","ts":%d,"dur":1,"args":'
    b'{"Collective name":"allreduce","Process Group Ranks":"[%s%d]"}}' % (n, b"1, " * 3000, n),
}  # fmt: skip


def write(path: Path, kind: str, megabytes: int) -> None:
    """A packed trace of so many bytes of one kind of event."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(_BEGIN)
        number = written = 0
        while written < megabytes * 1_000_000:
            block = b"".join(b"," + EVENTS[kind](number + k) for k in range(100))
            written += file.write(block)
            number += 100
        file.write(b"]}")


def _kineto(kind: str) -> Maker:
    def written(folder: Path, chance: random.Random, megabytes: int) -> Path:
        path = folder / "rank0.pt.trace.json.gz"
        write(path, kind, 4 * megabytes)
        return path

    return written


KINDS: dict[str, dict[str, Maker]] = {"kineto": {kind: _kineto(kind) for kind in EVENTS}, **BOMBS}
_COMMANDS = {
    "dump": (("hang",), ("bandwidth",)),
    "inspector": (("bandwidth",), ("bandwidth", "--by", "time"), ("summary",)),
    "beside": (("summary",),),
}
_OF_TRACES = (("breakdown",), ("summary",), ("table", "kernels"))


class Outcome(NamedTuple):
    """How a command ended: exit code, peak memory in MB, seconds of CPU, and the last line said."""

    code: int
    peak_mb: int
    cpu_s: float
    last: str
    out: str


def read(path: Path, command: Sequence[str], limit_mb: int | None) -> Outcome:
    """What became of one process that reads the file."""
    limit = [] if limit_mb is None else ["--memory", str(limit_mb / 1000)]
    known = [] if command[0] == "hang" else ["--no-cache"]
    arguments = ["-m", "commtrace", *command, *known, "--workers", "1", *limit, str(path)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said, preexec_fn=_limited
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").splitlines()
    last = lines[-1] if lines else ""
    return Outcome(process.returncode, usage.ru_maxrss // 1000, usage.ru_utime + usage.ru_stime, last, "\n".join(lines))


def _limited() -> None:
    """Should all walls fall, the machine goes on."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_S, _MOST_S))


def wrong_with(done: Outcome, limit_mb: int) -> str | None:
    """What is wrong with how reading a file ended; None where it was read or refused within the limit."""
    if done.code not in (0, 1) or "Traceback" in done.out:
        return f"ended by {done.code}"
    if done.code == 1 and not any(line.startswith("error: ") for line in done.out.splitlines()):
        return None if "hang" in done.out or not done.out else "exit code 1 without an error"
    if done.peak_mb > 1.2 * limit_mb + OWN_MB:
        return f"took {done.peak_mb} MB"
    return f"took {done.cpu_s:.0f} s" if done.cpu_s > _LONG_S else None


def attack(
    folder: Path, tries: int, seed: int, megabytes: int = 20, kind: str = "all"
) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; the largest file has so many `megabytes`, unpacked, and is of that `kind` or of all."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    bombs = [(sort, name) for sort in KINDS for name in KINDS[sort] if kind in ("all", sort)]
    order = chance.sample(bombs, len(bombs))
    for number in range(tries):
        sort, name = order[number % len(order)]
        own = folder / str(number)
        own.mkdir()
        path = KINDS[sort][name](own, chance, chance.randint(1, megabytes))
        command = chance.choice(_COMMANDS.get(sort, _OF_TRACES))
        limit_mb = chance.choice((100, 200, 300))
        done = read(path, command, limit_mb)
        counts["refused" if done.code == 1 else "read"] += 1
        if (why := wrong_with(done, limit_mb)) is not None:
            about = f"{sort}, {name}, {' '.join(command)}, {limit_mb} MB"
            wrong.append(f"try {number} of seed {seed}: {about}: {why}; {done.peak_mb} MB, {done.last[:300]}")
        shutil.rmtree(own)
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__, megabytes=20, kind="all"))
