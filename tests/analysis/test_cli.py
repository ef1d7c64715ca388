"""The command line: output for people and programs, exit codes, and one line for every bad input."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from builders import LAYOUTS, MS, Collective, Trace, traces_of, write_bytes, write_run
from samples import a_sample, with_slow

from commtrace.analysis.cli.inputs import _each_against
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("summary", "breakdown", "table calls", "table collectives", "table participation", "bandwidth", "ranks")
TABLES = COMMANDS[1:]
FORMATS = ("table", "csv", "markdown", "json", "latex")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """Two ranks, two steps, an all_reduce in each; rank 1 arrives 3 ms late."""
    folder = tmp_path_factory.mktemp("runs") / "my run"
    truth = [Collective((k * 100 * MS, k * 100 * MS + 3 * MS), 10 * MS, elems=250_000_000) for k in (0, 1)]
    for trace in traces_of(2, truth):
        trace.step(1, 0, 90 * MS).step(2, 90 * MS, 190 * MS).kernel("gemm", 5 * MS, 6 * MS).write(folder)
    return folder


def python(*arguments: str, environment: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
    """`commtrace` in a process of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON", "COLUMNS"))}
    command = [sys.executable, "-m", "commtrace", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | (environment or {}),
        timeout=60,
        check=False,
        **{"capture_output": True, **options},
    )


def fails(capsys, *arguments: str, naming: str) -> str:
    """The one line on stderr of a call that must exit with 1 and print nothing."""
    assert main([str(a) for a in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert naming in captured.err
    return captured.err


# --- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("ranks-table", "summary-markdown", "ranks-csv")
@pytest.mark.parametrize(("command", "output_format"), a_sample([*product(COMMANDS, FORMATS)], 12))
def test_every_command_in_every_format(capsys, run_dir, command, output_format):
    assert main([*command.split(), str(run_dir), "--format", output_format]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert re.fullmatch(r"(note: of step [^\n]*; --whole: of all that was recorded\n)?", captured.err)


@pytest.mark.slow
def test_a_run_alone_is_summarised(capsys, run_dir):
    assert main([str(run_dir)]) == 0
    alone = capsys.readouterr().out
    assert main(["summary", str(run_dir)]) == 0
    assert alone == capsys.readouterr().out
    assert alone.startswith("my run: 2 ranks on ")
    assert main(["--all", str(run_dir)]) == 0
    assert "2 of 2: 0-1" in capsys.readouterr().out


@pytest.mark.slow
def test_options_before_the_run_mean_the_summary_too(capsys, run_dir):
    assert main(["--format", "json", str(run_dir)]) == 0
    assert json.loads(capsys.readouterr().out)["table"] == "summary"


@pytest.mark.slow
@pytest.mark.parametrize("command", a_sample(TABLES, 3))
def test_json_and_csv_say_the_same(capsys, run_dir, command):
    main([*command.split(), str(run_dir), "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    main([*command.split(), str(run_dir), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in content["rows"]] == rows


@pytest.mark.slow
def test_numbers_are_those_of_the_run(capsys, run_dir):
    main(["table", "collectives", str(run_dir), "--format", "json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["busbw_gb_per_s"], r["arrival_skew_ns"], r["last_rank"]) for r in rows] == [(100, 3 * MS, 1)] * 2
    main(["breakdown", "--by", "step", str(run_dir), "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    assert content["table"] == "breakdown_steps"
    assert [(r["rank"], r["step"]) for r in content["rows"]] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_output_to_a_file_leaves_stdout_empty(capsys, run_dir, tmp_path):
    target = tmp_path / "out.csv"
    assert main(["table", "calls", str(run_dir), "-f", "csv", "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    main(["table", "calls", str(run_dir), "-f", "csv"])
    assert target.read_text(encoding="utf-8") == capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


def test_output_replaces_a_file_whole_or_not_at_all(capsys, run_dir, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("precious", encoding="utf-8")
    assert main(["table", "calls", str(tmp_path / "nowhere"), "-o", str(target)]) == 1
    assert target.read_text(encoding="utf-8") == "precious"
    assert main(["table", "calls", str(run_dir), "-f", "csv", "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("call_id,")


def test_output_into_a_folder_that_is_not_there(capsys, run_dir, tmp_path):
    fails(capsys, "table", "calls", run_dir, "-o", tmp_path / "no" / "out.csv", naming="out.csv: cannot be written")


def test_output_onto_a_folder(capsys, run_dir, tmp_path):
    fails(capsys, "table", "calls", run_dir, "-o", tmp_path, naming="cannot be written")
    assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.parent.glob("*.partial"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_into_a_read_only_folder(capsys, run_dir, tmp_path):
    tmp_path.chmod(0o500)
    fails(capsys, "table", "calls", run_dir, "-o", tmp_path / "out.csv", naming="out.csv: cannot be written")


def test_output_through_a_link_is_refused(capsys, run_dir, tmp_path):
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    fails(capsys, "table", "calls", run_dir, "-o", link, naming="link.csv: cannot be written: is a link to")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "old"


def test_output_never_takes_the_place_of_what_is_read(capsys, run_dir, tmp_path):
    trace = next(iter(sorted(run_dir.glob("*.json*"))))
    hard = tmp_path / "hard.csv"
    hard.hardlink_to(trace)
    before = trace.read_bytes()
    for output in (trace, hard, run_dir / ".." / run_dir.name / trace.name):
        assert main(["table", "calls", str(run_dir), "-o", str(output)]) == 2
        assert "which is read; name another file" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert trace.read_bytes() == before


def test_output_keeps_the_permissions_of_what_it_replaces(capsys, run_dir, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    assert main(["table", "calls", str(run_dir), "-f", "csv", "-o", str(target)]) == 0
    assert target.stat().st_mode & 0o777 == 0o640


def test_output_into_a_pipe_goes_through_it(capsys, run_dir, tmp_path):
    # As into a device: what is not a plain file is written to, never replaced.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["table", "calls", str(run_dir), "-f", "csv", "-o", str(pipe)]) == 0
        assert pipe.is_fifo()
        assert os.read(reader, 1 << 16).startswith(b"call_id,")
    finally:
        os.close(reader)


def test_users_can_name_communication_kernels(capsys, tmp_path):
    Trace().kernel("my_exchange<8>", 0, 5 * MS).kernel("his_exchange", 9 * MS, 1 * MS).write(tmp_path)
    fails(capsys, "table", "calls", tmp_path, naming="no communication in the profiled window")
    assert main(["breakdown", str(tmp_path), "--comm-kernel", "^my_", "--comm-kernel", "^his_", "-f", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["n_comm"], row["comm_ns"], row["compute_ns"]) == (2, 6 * MS, 0)


# --- help and usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *[c.split() for c in COMMANDS]], ids=str)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(capsys, command, flag):
    assert main([*command, flag]) == 0
    captured = capsys.readouterr()
    assert "Usage: " in captured.out
    assert captured.err == ""


def test_the_help_of_all_names_every_command(capsys):
    main(["--help"])
    text = capsys.readouterr().out
    assert all(command.split()[0] in text for command in COMMANDS)
    assert "{prog}" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["summary"],
        ["breakdown", "--by", "colour", "."],
        ["table", "calls", "--format", "xml", "."],
        ["table", "calls", "--no-such-option", "."],
        ["table", "calls", ".", "--output"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(capsys, arguments):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.endswith(f"; see `commtrace {' '.join(arguments[: 1 + (arguments[0] == 'table')])} -h`\n")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("gigabytes", ["inf", "nan", "1e400"])
def test_memory_without_end_is_wrong_usage(capsys, run_dir, gigabytes):
    assert main(["breakdown", str(run_dir), "--memory", gigabytes]) == 2
    shown = capsys.readouterr().err  # the newest typer refuses nan itself, in other words
    assert "Invalid value for " in shown
    assert gigabytes == "nan" or f"--memory: {float(gigabytes)} is not a finite number" in shown


@pytest.mark.parametrize("pattern", ["(", "k\udcff"])
def test_a_pattern_that_is_none_is_wrong_usage(capsys, run_dir, pattern):
    assert main(["table", "calls", str(run_dir), "--comm-kernel", pattern]) == 2
    assert f"{pattern!r} is not a regular expression" in " ".join(capsys.readouterr().err.split())


def test_no_arguments_show_the_help_and_exit_2(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Usage: " in captured.out + captured.err


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_no_such_folder(capsys, tmp_path, command):
    fails(capsys, *command.split(), tmp_path / "nowhere", naming="nowhere: no such file or directory")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_folder(capsys, tmp_path, command):
    fails(capsys, *command.split(), tmp_path, naming="holds no Kineto trace")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"not json", "holds no JSON"),
        (b"\x89PNG\r\n\x1a\n\x00", "holds no JSON"),
        (b"\x1f\x8bnot really gzip", "damaged"),
        (b'{"loss": [1, 2]}', "is JSON but not a Kineto trace"),
        (b"[1, 2, 3]", ""),
        (b"3", "is JSON but not a Kineto trace"),
        (b'{"schema": "1.1.1", "pid": 5, "nodes": [{"id": 1, "name": "aten::mm", "inputs": {}}]}', "execution trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}', "ts"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "args": {"stream": "a"}}]}', "stream"),
    ],
    ids=lambda v: str(v)[:40],
)
@pytest.mark.parametrize("name", ["node_0.0001.pt.trace.json", "node_0.0001.pt.trace.json.gz"])
def test_a_file_that_is_no_trace(capsys, tmp_path, content, reason, name):
    write_bytes(tmp_path / name, content)
    assert reason in fails(capsys, tmp_path, naming=name)


@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_a_truncated_trace(capsys, tmp_path, layout, gz):
    trace = Trace(0, 2, groups={"0": [0, 1]}).step(1, 0, 9 * MS)
    for k in range(4):
        trace.nccl("all_reduce", k * MS, 500_000)
    content = LAYOUTS[layout](trace.document())
    content = gzip.compress(content) if gz else content
    path = tmp_path / "node_0.0001.pt.trace.json"
    for length in range(1, len(content) - 1, max(1, len(content) // 40)):
        write_bytes(path, content[:length])
        fails(capsys, "breakdown", path, naming=path.name)


@pytest.mark.slow
def test_a_trace_without_events_is_empty_not_broken(capsys, tmp_path):
    write_bytes(tmp_path / "rank0.json", b'{"schemaVersion": 1, "traceEvents": []}')
    fails(capsys, "breakdown", tmp_path, naming="no device activity")
    assert main([str(tmp_path)]) == 0
    assert "no device activity" in capsys.readouterr().out


def test_two_jobs_in_one_folder(capsys, tmp_path):
    write_run(tmp_path, 2, [Collective((0, 0))])
    Trace(2, 4).kernel("gemm", 0, 1).write(tmp_path, "other_2.0001.pt.trace.json.gz")
    fails(capsys, tmp_path, naming="files of different jobs")


def test_two_files_of_one_rank(capsys, tmp_path):
    write_run(tmp_path, 2, [Collective((0, 0))])
    Trace(1, 2).kernel("gemm", 0, 1).write(tmp_path, "other_1.0001.pt.trace.json.gz")
    line = fails(capsys, tmp_path, naming="both claim rank 1")
    assert "node_1.0001.pt.trace.json.gz" in line
    assert "other_1.0001.pt.trace.json.gz" in line


@pytest.mark.slow
def test_a_missing_rank_is_named_and_nothing_is_made_up(capsys, tmp_path):
    write_run(tmp_path, 3, [Collective((0, 1 * MS, 2 * MS))])
    (tmp_path / "node_1.0001.pt.trace.json.gz").unlink()
    assert main([str(tmp_path), "--all"]) == 0
    text = capsys.readouterr().out
    assert "2 of 3: 0, 2" in text
    why = "wait and transfer of its collectives are known only where other ranks show enough"
    assert f"rank 1 has no trace: {why}" in text
    assert main(["table", "collectives", str(tmp_path), "-f", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["complete"], row["note"], row["busbw_gb_per_s"]) == (False, "not seen on rank 1", None)


def test_a_folder_named_like_a_trace(capsys, tmp_path):
    write_run(tmp_path, 1, [Collective((0,))])
    (tmp_path / "node_1.0001.pt.trace.json").mkdir()
    fails(capsys, tmp_path, naming="node_1.0001.pt.trace.json: cannot be read")


def test_a_link_to_nowhere(capsys, tmp_path):
    (tmp_path / "rank0.json").symlink_to(tmp_path / "gone")
    fails(capsys, tmp_path, naming="rank0.json: cannot be read")
    fails(capsys, tmp_path / "rank0.json", naming="rank0.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(capsys, tmp_path):
    Trace().kernel("gemm", 0, 1).write(tmp_path).chmod(0)
    fails(capsys, tmp_path, naming="Permission denied")


@pytest.mark.slow
def test_a_name_with_control_characters_cannot_move_the_cursor(capsys, tmp_path):
    folder = tmp_path / "run\x1b[2J"
    write_run(folder, 2, [Collective((0, 0))])
    assert main([str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    write_bytes(folder / "node_0.0001.pt.trace.json.gz", b"")
    main([str(folder)])
    assert "\x1b" not in capsys.readouterr().err


# --- keeping going ---------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("summary", "ranks")
@pytest.mark.parametrize("command", COMMANDS)
def test_keep_going_shows_the_other_ranks_and_exits_1(capsys, tmp_path, command):
    write_run(tmp_path, 3, [Collective((0, 1 * MS, 2 * MS))])
    write_bytes(tmp_path / "node_1.0001.pt.trace.json.gz", b"\x1f\x8b")
    fails(capsys, *command.split(), tmp_path, naming="node_1.0001.pt.trace.json.gz")
    assert main([*command.split(), str(tmp_path), "--keep-going", "-f", "json"]) == 1
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert {row.get("rank", 0) for row in content.get("rows", content.get("breakdown"))} <= {0, 2}
    assert captured.err.startswith("error: ")
    assert "node_1.0001.pt.trace.json.gz" in captured.err


def test_keep_going_with_nothing_left(capsys, tmp_path):
    for rank in (0, 1):
        write_bytes(tmp_path / f"node_{rank}.0001.pt.trace.json.gz", b"")
    assert main([str(tmp_path), "--keep-going"]) == 1
    assert "none of the 2 files could be used" in capsys.readouterr().err


# --- as a process ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_a_module(run_dir):
    done = python("breakdown", "--whole", run_dir, "-f", "csv", text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rank,device,")


@pytest.mark.slow
def test_exit_codes_reach_the_shell(tmp_path):
    done = python(tmp_path / "nowhere", text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert python("table", "calls", "--colour", text=True).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "output_format"),
    with_slow([("ascii", "table"), ("latin-1", "json")], [("ascii", "csv"), ("ascii", "markdown"), ("utf-8", "table")]),
)
def test_any_locale(tmp_path, encoding, output_format):
    folder = tmp_path / "Läufe 数据"
    write_run(folder, 2, [Collective((0, 1 * MS), group="数据|并行\x1b")])
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": encoding}
    done = python(
        "bandwidth" if output_format == "csv" else "summary", folder, "-f", output_format, environment=environment
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    if output_format in ("table", "markdown"):
        assert "\x1b" not in text
    if output_format == "json":
        assert json.loads(text)["table"] == "summary"


def test_an_error_in_any_locale(tmp_path):
    done = python(tmp_path / "Läufe 数据", environment={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_a_folder_whose_name_is_no_text(capsys, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    write_run(folder, 2, [Collective((0, 1 * MS))])
    for output_format in FORMATS:
        assert main(["summary", str(folder), "-f", output_format]) == 0
        assert main(["summary", str(folder), "-f", output_format, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(tmp_path):
    # More output than a pipe holds, and a reader that is gone before it is written.
    write_run(tmp_path, 2, [Collective((k * MS, k * MS), 500_000) for k in range(800)])
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = python(
            "table", "calls", tmp_path, "-f", "json", stdout=pipe, stderr=subprocess.PIPE, capture_output=False
        )
    assert done.returncode == 0
    assert done.stderr == b""


def test_help_is_quick_because_it_imports_little(run_dir):
    program = (
        "import sys; from commtrace.cli import main; main(['--help']); print('pandas' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "False\n"


@pytest.mark.slow
def test_torch_is_never_imported(run_dir):
    program = (
        "import sys; from commtrace.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 10 * ('torch' in sys.modules))"
    )
    command = [sys.executable, "-c", program, str(run_dir)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode == 0


def test_all_that_follows_against_is_on_that_side():
    assert _each_against(["A", "--against=B1", "B2", "--top", "3"]) == [
        "A",
        "--against=B1",
        "--against",
        "B2",
        "--top",
        "3",
    ]
    assert _each_against(["A", "--against", "B1", "B2"]) == ["A", "--against", "B1", "--against", "B2"]
