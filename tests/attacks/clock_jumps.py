"""The clock of the host is set while a script is traced: `python tests/attacks/clock_jumps.py --tries 20 --seed 0`.

A library that is loaded before all others (LD_PRELOAD) moves the wall clock for one process, in a step before, among or
after the traced ones. A trace that is kept says how long steps took, as a clock says that nobody sets; and one is kept
where the clock was set at other times. Needs a C compiler.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from attacking import run_attack
from capturing import ROOT, environment, metas, trace

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead_ms(void) {
    long ms = 0;
    FILE *file = fopen(getenv("CLOCK_AHEAD"), "r");
    if (file) {
        if (fscanf(file, "%ld", &ms) != 1) ms = 0;
        fclose(file);
    }
    return ms;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + ahead_ms() * 1000000LL;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
"""
SCRIPT = """
import os, pathlib, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    if step == int(sys.argv[1]):
        pathlib.Path(os.environ["CLOCK_AHEAD"]).write_text(sys.argv[2])
    model(torch.ones(8, 16)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""
FIRST, STEPS = 10, 5
"""As the script counts: the first step of an optimizer opens the capture, which counts the next one as its step 0."""
TOLERANCE = 0.3
"""Of the traced steps: the profiler's own time is in one of the two."""
LEAST_MS = 200
"""More than the traced steps take."""


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    (folder / "jump.c").write_text(LIBRARY)
    (folder / "script.py").write_text(SCRIPT)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "jump.so", folder / "jump.c", "-ldl"]
    subprocess.run(command, check=True)
    for number in range(tries):
        step = chance.choice((3, FIRST - 1, *range(FIRST, FIRST + STEPS), FIRST + STEPS + 6))
        ahead_ms = chance.choice((-1, 1)) * chance.choice((1, 200, 2000, 60_000, 3_600_000, 86_400_000))
        run = folder / f"run{number}"
        changes = {"LD_PRELOAD": str(folder / "jump.so"), "CLOCK_AHEAD": str(folder / f"ahead{number}")}
        options = ["--from-step", FIRST - 1, "--active", STEPS, "--out", folder, "--run-name", run.name]
        arguments = ["-m", "commtrace", "run", *options, folder / "script.py", step, ahead_ms]
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT, env=os.environ | environment() | changes, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            wrong.append(f"try {number}: exit code {done.returncode}: {done.stderr[-300:]}")
            continue
        what, fault = judged(run, among=FIRST <= step < FIRST + STEPS, ahead_ms=ahead_ms)
        counts[what] += 1
        wrong += [f"try {number}: set by {ahead_ms} ms in step {step}: {fault}"] * (fault is not None)
    return counts, wrong


def judged(run: Path, *, among: bool, ahead_ms: int) -> tuple[str, str | None]:
    """What became of the trace, and what is wrong with that."""
    found = metas(run)[0]
    if not found["traces"]:
        is_said = "the clock of this host was set" in (found["reason"] or "")
        return "not kept", None if is_said and among else f"not kept, because {found['reason']}"
    events = trace(run / found["traces"][0])["traceEvents"]
    traced_ms = {event["name"]: event["dur"] / 1e3 for event in events if "ProfilerStep#" in event.get("name", "")}
    timed_ms = sum(step["dur_ns"] / 1e6 for step in found["steps"] if f"ProfilerStep#{step['step']}" in traced_ms)
    if len(traced_ms) != STEPS or abs(sum(traced_ms.values()) - timed_ms) > TOLERANCE * timed_ms:
        return "kept", f"{len(traced_ms)} steps took {timed_ms:.1f} ms, and {sum(traced_ms.values()):.1f} in the trace"
    return "kept", "kept, though it was set among them" if among and abs(ahead_ms) >= LEAST_MS else None


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
