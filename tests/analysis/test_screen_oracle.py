"""The first screen beside an oracle that knows only the definitions: steps are counted millisecond by millisecond."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from builders import MS, US, Trace, analysed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_screens import contradictions

from commtrace.analysis.core.schema import records
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.show.overview import overview

RANKS = (0, 1)
SHORT = st.integers(0, 6)
PARTS = (
    "compute_alone_ns", "overlap_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memory_ns", "idle_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What a rank does in a step, in ms: it computes, copies, is idle, communicates, and computes again."""

    compute: int
    copy: int
    pause: int
    beside: int
    after: int


@dataclass(frozen=True)
class Job:
    """Steps of both ranks, the transfer of their all_reduce in each, and how long the CPUs' last step is."""

    steps: list[tuple[Step, Step]]
    transfers: list[int]
    last_cpu: int


STEPS = st.builds(Step, compute=st.integers(1, 9), copy=SHORT, pause=SHORT, beside=SHORT, after=SHORT)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    count = draw(st.integers(1, 6))
    alike = draw(st.tuples(STEPS, STEPS))
    events = st.one_of(st.just(alike), st.just(alike), st.tuples(STEPS, STEPS))
    steps = draw(st.lists(events, min_size=count, max_size=count))
    transfers = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    return Job(steps, transfers, draw(st.integers(1, 40)))


class Device:
    """What runs in each ms of a rank: the letters of compute, copy, wait and transfer."""

    def __init__(self) -> None:
        self.cells: dict[int, set[str]] = {}
        self.begins: list[int] = []

    def run(self, kind: str, start: int, lasts: int) -> None:
        for ms in range(start, start + lasts):
            self.cells.setdefault(ms, set()).add(kind)

    def windows(self) -> list[range]:
        """A step lasts until the first activity of the next one, the last until all has ended."""
        ends = [*self.begins[1:], max(self.cells) + 1]
        return [range(begin, end) for begin, end in zip(self.begins, ends, strict=True)]

    def parts(self, window: range) -> dict[str, int]:
        kinds = [self.cells.get(ms, set()) for ms in window]
        comm = [bool(kind & {"wait", "transfer"}) for kind in kinds]
        exposed = [is_comm and "compute" not in kind for kind, is_comm in zip(kinds, comm, strict=True)]
        return {
            "compute_alone_ns": sum("compute" in kind and not c for kind, c in zip(kinds, comm, strict=True)),
            "overlap_ns": sum("compute" in kind and c for kind, c in zip(kinds, comm, strict=True)),
            "exposed_transfer_ns": sum("transfer" in kind and e for kind, e in zip(kinds, exposed, strict=True)),
            "exposed_wait_ns": sum("wait" in kind and e for kind, e in zip(kinds, exposed, strict=True)),
            "exposed_memory_ns": sum(kind == {"copy"} for kind in kinds),
            "idle_ns": sum(not kind for kind in kinds),
        }


def played(job: Job) -> tuple[list[Trace], list[Device], list[list[int]]]:
    """The traces, what the devices did, and how long the CPUs' steps are."""
    traces = [Trace(rank, 2, groups={"0": RANKS}, host="node") for rank in RANKS]
    devices = [Device() for _ in RANKS]
    now = [0, 0]
    for number, (steps, transfer) in enumerate(zip(job.steps, job.transfers, strict=True)):
        begins, arrived = list(now), []
        for rank, step in enumerate(steps):
            devices[rank].begins.append(begins[rank])
            at = begins[rank]
            launch = iter(at * MS + 10 * US * (k + 1) for k in range(9))
            traces[rank].kernel("gemm", at * MS, step.compute * MS, launch=at * MS)
            devices[rank].run("compute", at, step.compute)
            at += step.compute
            if step.copy:
                traces[rank].memcpy("DtoH", at * MS, step.copy * MS, launch=next(launch))
                devices[rank].run("copy", at, step.copy)
            arrived.append(at + step.copy + step.pause)
        last, end = max(arrived), max(arrived) + transfer
        for rank, step in enumerate(steps):
            launch = iter(begins[rank] * MS + 200 * US + 10 * US * k for k in range(9))
            begin = arrived[rank]
            traces[rank].nccl("all_reduce", begin * MS, (end - begin) * MS, launch=next(launch), Seq=number)
            devices[rank].run("wait", begin, last - begin)
            devices[rank].run("transfer", last, transfer)
            beside = min(step.beside, end - begin)
            for start, lasts in ((begin, beside), (end, step.after)):
                if lasts:
                    traces[rank].kernel("relu", start * MS, lasts * MS, launch=next(launch))
                    devices[rank].run("compute", start, lasts)
            now[rank] = end + step.after
    cpu = []
    for rank, device in enumerate(devices):
        lengths = [window.stop - window.start for window in device.windows()]
        cpu.append([*lengths[:-1], job.last_cpu])
        for number, (begin, lasts) in enumerate(zip(device.begins, cpu[-1], strict=True)):
            traces[rank].step(number, begin * MS, (begin + lasts) * MS)
    return traces, devices, cpu


def counted(windows: list[float], cpu: list[float]) -> list[int]:
    """The steps that count, as docs/metrics/steps.md says."""
    factors = [window / length for window, length in zip(windows, cpu, strict=True)]

    def is_cut(step: int) -> bool:
        others = [factor for other, factor in enumerate(factors) if other != step]
        if not others:
            return False
        both = (factors[step], factors[step] / median(others))
        first, last = step == 0, step == len(windows) - 1
        holds_more = min(both) > 1.15 and windows[step] > min(windows[:step] + windows[step + 1 :])
        return (max(both) < 1 / 1.15 and (first or last)) or (holds_more and last)

    whole = [step for step in range(len(windows)) if not is_cut(step)]
    while whole:
        middle = median(windows[step] for step in whole)
        alike = [step for step in whole if abs(windows[step] - middle) <= 0.25 * middle]
        if len(alike) == len(whole) or 2 * len(alike) <= len(whole):
            return whole
        whole = alike
    return list(range(len(windows)))


def verdicts(parts: dict[str, float]) -> set[str]:
    """What may be said of a step: the largest loss, or either of two that are equally large."""
    whole = sum(parts.values())
    wait, transfer = parts["exposed_wait_ns"], parts["exposed_transfer_ns"]
    losses = {
        "idle": parts["idle_ns"],
        "copy-bound": parts["exposed_memory_ns"],
        "skew-bound" if wait >= transfer else "transfer-bound": wait + transfer,
    }
    largest = max(losses.values())
    if largest < 0.05 * whole:
        return {"compute-bound"}
    return {name for name, loss in losses.items() if loss == largest}


@pytest.mark.slow
@given(job=jobs())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_typical_step_and_its_verdict_are_those_of_the_definitions(job: Job) -> None:
    traces, devices, cpu = played(job)
    windows = [device.windows() for device in devices]
    steps = range(len(job.steps))
    lengths = [sum(len(own[step]) for own in windows) / 2 for step in steps]
    whole = counted(lengths, [sum(own[step] for own in cpu) / 2 for step in steps])
    shares = [device.parts(own[step]) for device, own in zip(devices, windows, strict=True) for step in whole]
    parts = {part: sum(share[part] for share in shares) / len(shares) for part in PARTS}

    with tempfile.TemporaryDirectory() as folder:
        run = analysed(Path(folder), *traces)
        typical = run.typical_step
        assert list(typical.steps) == whole
        assert {part: round(typical.parts[part] / MS, 3) for part in PARTS} == {
            part: round(ms, 3) for part, ms in parts.items()
        }
        assert records(run.verdicts)[0]["verdict"] in verdicts(parts)
        for width in (60, 80, 100):
            screen = overview(run, Screen(width=width))
            assert not contradictions(run, screen, width), screen
