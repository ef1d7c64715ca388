"""Copies of real traces against what their JSON says."""

import re
from collections import Counter

import pytest
from beside_checkout import SHARED, TRACES, needs_shared
from raw_traces import SEVERAL, Event, raw

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared
NSIGHT = SHARED / "nsight" / "mfu_2gpu_before.sqlite"
FILES = (
    *SEVERAL,
    "rccl-mi300x-r0of8/resnet_act_checkpoint.json.gz",
    "tracelens-sglang/sglang_Qwen3-8B_prefilldecode.json.gz",
)


def way(event: Event) -> tuple[str, str | None]:
    if event.name.startswith("Memset"):
        return "memset", None
    direction, source, target = re.fullmatch(r"Memcpy (\w+) \((.*) -> (.*)\)", event.name).groups()
    memory = {source, target} & {"Pinned", "Pageable"}
    return direction, memory.pop().lower() if memory else None


def alone_ns(here: list[Event], others: list[Event]) -> int:
    """How long something of these runs and nothing of the others, moment by moment."""
    moments = sorted({t for e in (*here, *others) for t in (e.start, e.end)})
    change: dict[int, list[int]] = {t: [0, 0] for t in moments}
    for which, events in enumerate((here, others)):
        for event in events:
            change[event.start][which] += 1
            change[event.end][which] -= 1
    run, result = [0, 0], 0
    for first, last in zip(moments, [*moments[1:], moments[-1]], strict=True):
        run = [a + b for a, b in zip(run, change[first], strict=True)]
        result += last - first if run[0] and not run[1] else 0
    return result


@pytest.mark.slow_cases(
    "hta-negq-r0of16/rank0.json.gz",
    "rccl-mi300x-r0of8/resnet_act_checkpoint.json.gz",
    "tracelens-sglang/sglang_Qwen3-8B_prefilldecode.json.gz",
    "vllm-b200-r0of8/eager_trace.json.gz",
)
@pytest.mark.parametrize("file", FILES)
def test_copies_as_the_json_has_them(file):
    rows = {
        (r["device"], r["stream"], r["direction"], r["memory"]): r
        for r in records(analyse(TRACES / file, workers=1, whole=True).copies)
    }
    wanted: dict[tuple[object, ...], list[Event]] = {}
    events = raw(file).activities
    for event in events:
        if event.cat not in ("kernel", "Kernel"):
            wanted.setdefault((event.device, event.thread, *way(event)), []).append(event)
    assert rows.keys() == wanted.keys()
    for key, here in wanted.items():
        row, sized = rows[key], [e for e in here if "bytes" in e.args]
        size, took = sum(e.args["bytes"] for e in sized), sum(e.end - e.start for e in sized)
        assert (row["copies"], row["unsized"]) == (len(here), len(here) - len(sized))
        assert row["total_ns"] == sum(e.end - e.start for e in here)
        assert row["size_bytes"] == (size if sized else None)
        assert row["bandwidth_gb_per_s"] == (pytest.approx(size / took) if took else None)
        others = [e for e in events if e.device == key[0] and not any(e is each for each in here)]
        assert row["exposed_ns"] == alone_ns(here, others)


@pytest.mark.skipif(not NSIGHT.exists(), reason="no export of Nsight Systems beside the checkout")
def test_an_export_of_nsight():
    result: Counter[str] = Counter()
    for row in records(analyse(NSIGHT).copies):
        result[row["direction"]] += row["size_bytes"]
    assert result == {"HtoD": 272, "DtoD": 8_046_134_272, "memset": 1_076}
