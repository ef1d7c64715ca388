"""Real traces as they are, and cut as Kineto cuts them where its buffers are full."""

import gzip
import json

import pytest
from beside_checkout import FILES, needs_shared

from commtrace.analysis.reading.pool import Reading
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.run.file_tables import trace_file
from commtrace.profiling.sessions.gpu_reach import cut_short

pytestmark = [needs_shared, pytest.mark.slow]
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
# Of fewer launches, what is missing at the end proves nothing.
_LEAST_LAUNCHES = 20


def notes_of(path) -> list[str]:
    with Reading([TraceInput(path)], ReadOptions(workers=1)) as reading:
        (raw,) = reading.results(None)
    return [note for note in trace_file(path, raw).notes if "GPU side ends early" in note]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_whole_traces_are_not_called_cut(path, tmp_path):
    assert notes_of(path) == []
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert cut_short(plain) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_cut_traces_are_noticed(path, tmp_path):
    """After four fifths of the GPU's time it has nothing more; its launches go on."""
    content = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    events = content["traceEvents"]
    gpu = [event for event in events if event.get("ph") == "X" and event.get("cat") in _ON_GPU]
    launches = sum("Launch" in str(event.get("name")) for event in events)
    if launches < _LEAST_LAUNCHES or not gpu:
        return  # nothing to notice it by
    begin = min(event["ts"] for event in gpu)
    until = begin + 0.8 * (max(event["ts"] + event["dur"] for event in gpu) - begin)
    if not any("Launch" in str(event.get("name")) and event.get("ts", 0) > until for event in events):
        return  # the CPU had launched everything before
    lost = {id(event) for event in gpu if event["ts"] + event["dur"] > until}
    cut = tmp_path / path.name
    rest = [event for event in events if id(event) not in lost]
    cut.write_bytes(gzip.compress(json.dumps({**content, "traceEvents": rest}).encode(), 1))
    assert len(notes_of(cut)) == 1
