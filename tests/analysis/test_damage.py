"""A damaged file is never read as a sound one, and every byte is accounted for. The long run is in tests/attacks."""

import gzip
import json
from pathlib import Path

import pytest
from builders import LAYOUTS, MS, US, Trace, write_bytes
from damaged_traces import attack
from samples import a_sample
from small_trace import OPTIONS, content, read

from commtrace.analysis.core.budget import default_limit_bytes
from commtrace.analysis.errors import DamagedTrace, TooLarge
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.kineto.verified import verified
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import load_run
from commtrace.cli import main
from commtrace.registry import COMMANDS, table_commands

DATA = Path(__file__).resolve().parents[1] / "data"


def frames() -> Trace:
    """Mostly what nothing is measured from, in which damage is easily overlooked."""
    made = Trace(0, 1).step(1, 0, 900 * MS)
    for number in range(400):
        made.event("python_function", f"train.py({number}): forward", number * MS, 900 * US)
        if number % 10 == 0:
            made.kernel(f"gemm {number % 7}", number * MS, 500 * US)
    return made


def text_of(made: Trace, folder) -> bytes:
    return made.write(folder, gz=False).read_bytes()


@pytest.mark.quick_cases("compact")
@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13", "compact"])
def test_nothing_is_silently_wrong(tmp_path, layout):
    sources = [content(layout), LAYOUTS[layout](frames().document())]
    counts, wrong = attack(tmp_path, 250, 3, sources, ReadSizes(chunk_bytes=4096))
    assert wrong == []
    assert counts["refused"] > 100  # or nothing was damaged


@pytest.mark.slow
def test_what_lies_between_two_frames_is_missed(tmp_path):
    text = text_of(frames(), tmp_path)
    begin, end = (text.index(b"train.py(%d)" % number) for number in (101, 119))
    path = tmp_path / "rank0.json"
    for cut in range(-150, 150, 3):
        damaged = text[:begin] + text[end + cut :]
        path.write_bytes(damaged)
        try:
            found = read_kineto(path, OPTIONS)
        except DamagedTrace:
            continue
        assert len(found.activities["ts"]) < 40 * 8
        json.loads(damaged)  # what is JSON still is nobody's to see


def test_a_hole_of_bytes_that_are_no_text_is_no_name(tmp_path):
    text = text_of(frames(), tmp_path)
    begin, end = (text.index(b"train.py(%d)" % number) + 5 for number in (101, 119))
    path = tmp_path / "rank0.json"
    path.write_bytes(text[:begin] + b"\xff" * (end - begin) + text[end:])
    with pytest.raises(DamagedTrace, match="is not JSON at byte"):
        read_kineto(path, OPTIONS)


def test_bytes_are_counted(tmp_path):
    text = content()
    path = tmp_path / "rank0.json"
    path.write_bytes(text)
    assert read(path).extent.read_bytes == len(text)
    assert read(path).extent.not_understood_bytes == 0
    at = text.index(b'"gemm 4"')
    path.write_bytes(text[:at] + b"\0" * 20 + text[at + 20 :])
    extent = read(path, keep_damaged=True).extent
    assert extent.read_bytes <= at
    assert extent.read_bytes + (extent.not_understood_bytes or 0) == len(text)
    packed = gzip.compress(text)
    path.write_bytes(packed[: len(packed) // 2])
    assert read(path, keep_damaged=True).extent.not_understood_bytes is None


@pytest.mark.slow
def test_the_summary_tells_bytes(tmp_path, capsys):
    path = tmp_path / "rank0.json"
    path.write_bytes(content())
    assert main(["summary", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["not_understood_bytes"] for row in found["traces"]] == [0]
    facts = {row["item"]: row["value"] for row in found["facts"]}
    assert facts["bytes"] == f"{len(content()):,} read, 0 not understood"


# --- decoded twice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_verified(tmp_path, workers):
    path = tmp_path / "rank0.json"
    path.write_bytes(content())
    (row,) = load_run([path], verify=True, workers=workers, cache=True).traces["verified_events"]
    assert row == len(json.loads(content())["traceEvents"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"gemm 4", "pid": ', b'"gemm 4", "pid": 1, "pid": ', "has the key 'pid' twice"),
        (b'"cat": "kernel", "name": "gemm 4"', b'"cat": "kernel", "cat": "ac2g", "name": "gemm 4"', "'cat' twice"),
    ],
)
def test_a_second_reading_sees_more(tmp_path, old, new, said):
    text = content()
    assert old in text
    path = tmp_path / "rank0.json"
    path.write_bytes(text.replace(old, new))
    found = read(path)
    with pytest.raises(DamagedTrace, match=said):
        verified(path, found)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_would_fill_the_memory_is_refused(tmp_path, capsys):
    made = Trace(0, 1)
    for number in range(20_000):
        made.kernel(f"k{number}", number * US, 500)
    path = made.write(tmp_path)
    with pytest.raises(
        TooLarge, match=r"would take 0\.00\d+ GB of memory or more, and 0\.002 GB may be used here.*--memory GB"
    ):
        read_kineto(path, ReadOptions(memory_gb=0.002))
    with pytest.raises(TooLarge):
        read_kineto(path, ReadOptions(memory_gb=0.002, keep_going=True))
    needed = read_kineto(path, OPTIONS).needed_bytes
    assert 20_000 * 300 < needed < 20_000 * 1000
    assert main(["breakdown", str(path), "--memory", "0.005"]) == 1
    assert "--memory GB" in capsys.readouterr().err
    assert main(["breakdown", str(path), "--memory", "1"]) == 0
    assert 10**8 < default_limit_bytes() < 10**14


def test_files_together_may_be_too_much(tmp_path, capsys):
    for rank in range(4):
        Trace(rank, 4).kernel("k", 0, MS).write(tmp_path)
    assert main(["breakdown", str(tmp_path), "--memory", "0.0005"]) == 1
    assert "with all files before it" in capsys.readouterr().err
    assert main(["breakdown", str(tmp_path), "--memory", "0.001"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        (b"gemm 4", b'gemm "4"', 2),
        (b"train.py: 4", b'a "b" <"c">: 4', 4),
        (b"\n    }\n  }", b",\n    }\n  }", content().count(b"\n    }\n  }")),
    ],
    ids=range(3),
)
def test_what_is_repaired_is_told(tmp_path, old, new, count):
    text = content()
    path = tmp_path / "rank0.json"
    path.write_bytes(text.replace(old, new))
    run = load_run([path])
    (unknown,) = run.traces["not_understood_bytes"]
    (note,) = (note for note in run.notes if "of invalid JSON" in note)
    assert unknown == count
    kept = load_run([path], cache=tmp_path)
    assert kept.notes == load_run([path], cache=tmp_path).notes == run.notes
    assert f"rank0.json: repaired {unknown} bytes" in note


_OTHER_ARGUMENTS = {
    "compare": ["{run}", "--against", "{run}"],
    "export inductor": ["{run}", "-o", "{out}.json"],
    "export parquet": ["{run}", "-o", "{out}"],
    "pack": ["{run}", "-o", "{out}"],
    "report": ["{run}", "-o", "{out}.html"],
    "export tensorboard-copy": ["{run}", "{out}"],
    "export tensorboard-scalars": ["{run}", "-o", "{out}"],
    "serve": ["{run}", "--no-browser", "--idle-minutes", "0.01"],
    "serving": ["{run}", "--steps", "(?P<kind>ProfilerStep)#"],
    "table serving": ["{run}", "--steps", "(?P<kind>ProfilerStep)#"],
    "timeline": ["{run}", "-o", "{out}.pftrace"],
    "watch": ["{run}", "--once", "-f", "jsonl"],
}
_NEEDS = {"export parquet": "pyarrow", "export tensorboard-scalars": "tensorboard"}
# `trigger` needs a job that runs, and memory a trace with allocations.
_OF_OTHER_FILES = {
    "explain", "export skill", "hang", "mcp", "memory", "plan-ranks", "table allocations", "table capacity",
    "table layers", "table memory", "table releases", "table scaling", "table subtraction", "table training", "trigger",
}  # fmt: skip
_COMMANDS = [
    row.name
    for row in (*COMMANDS.values(), *table_commands().values())
    if row.module and not row.captures and row.name not in _OF_OTHER_FILES
]


@pytest.mark.slow
@pytest.mark.parametrize("command", a_sample(_COMMANDS, 9))
def test_every_command_says_what_was_repaired(tmp_path, capsys, command):
    if command in _NEEDS:
        pytest.importorskip(_NEEDS[command])
    run = tmp_path / "run"
    for source in sorted((DATA / "nccl-straggler").glob("*.json.gz")):
        text = gzip.decompress(source.read_bytes()).replace(b'"name": "aten::', b'"name": "a "b" aten::')
        run.mkdir(exist_ok=True)
        write_bytes(run / source.name.removesuffix(".gz"), text)
    arguments = [one.format(run=run, out=tmp_path / "out") for one in _OTHER_ARGUMENTS.get(command, ["{run}"])]
    assert main([*command.split(), *arguments]) == 0
    told = " ".join("".join(capsys.readouterr()).split())  # a screen breaks lines
    assert "repaired " in told
    assert " bytes of invalid JSON" in told


def test_a_table_of_one_device_says_what_was_repaired(tmp_path, capsys):
    path = write_bytes(tmp_path / "rank0.json", text_of(frames(), tmp_path).replace(b"gemm 4", b'a "gemm" 4'))
    assert main(["breakdown", str(path)]) == 0
    assert "bytes of invalid JSON" in capsys.readouterr().err
