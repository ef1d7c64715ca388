"""A real XSpace of JAX on eight GPUs, against a walk that shares nothing with the reader."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from beside_checkout import SHARED

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

FILE = SHARED / "xplane" / "tw003.xplane.pb"

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="no XSpace beside the checkout")


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, value and content of each field; this file has integers and bytes only at these places."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while data[at] & 128:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
        value |= data[at] << shift
        at += 1
        return value

    while at < len(data):
        key = number()
        assert key & 7 in (0, 2)
        size = number()
        if key & 7 == 0:
            yield key >> 3, size, b""
        else:
            yield key >> 3, 0, data[at : at + size]
            at += size


def events_of_devices() -> dict[int, list[tuple[str, int, int]]]:
    """Name, start and end in ps of all that each GPU did."""
    devices: dict[int, list[tuple[str, int, int]]] = {}
    for number, _, plane in fields(FILE.read_bytes()):
        parts = [*fields(plane)] if number == 1 else []
        name = next((content for part, _, content in parts if part == 2), b"")
        if not name.startswith(b"/device:GPU:"):
            continue
        names: dict[int, str] = {}
        for part, _, content in parts:
            if part == 4:
                entry = {n: (value, inside) for n, value, inside in fields(content)}
                names[entry[1][0]] = next(text for n, _, text in fields(entry[2][1]) if n == 2).decode()
        found = devices.setdefault(int(name.rpartition(b":")[2]), [])
        for part, _, line in parts:
            if part == 3:
                inside = [*fields(line)]
                begin = next(value for n, value, _ in inside if n == 3) * 1000
                for n, _, event in inside:
                    if n == 4:
                        said = {key: value for key, value, _ in fields(event)}
                        start = begin + said.get(2, 0)
                        found.append((names[said[1]], start, start + said.get(3, 0)))
    return devices


def union_ps(spans: list[tuple[int, int]]) -> int:
    total = until = 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyse(Path(shutil.copy(FILE, tmp_path_factory.mktemp("xplane"))), details=True)


def test_compute_communication_and_idle_of_each_device(found: Analysis) -> None:
    devices = events_of_devices()
    table = found.table("breakdown").set_index("rank")
    assert sorted(devices) == table.index.tolist() == list(range(8))
    for rank, events in devices.items():
        spans = [(start, end) for _, start, end in events]
        busy, window = union_ps(spans), max(e for _, e in spans) - min(s for s, _ in spans)
        comm = union_ps([(start, end) for name, start, end in events if name.lower().startswith(("nccl", "rccl"))])
        row = table.loc[rank]
        assert row["n_compute"] == len(events)
        assert row["comm_ns"] * 1000 == comm == 0
        assert row["compute_ns"] * 1000 == busy
        assert row["window_ns"] * 1000 == window
        assert row["idle_ns"] * 1000 == window - busy


def test_all_kernels_but_those_before_the_capture_have_a_launch(found: Analysis) -> None:
    activities, launches = found.run.activities, found.run.launches
    assert len(activities) == 235
    assert len(launches) == 234
    assert found.run.traces["host"].unique().tolist() == ["tw003"]
