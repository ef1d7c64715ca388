"""What is logged of reading: nothing unless somebody asks; then each file, its reader, and what went another way."""

import logging
import re
import shutil
from pathlib import Path

import pytest
from builders import Trace, write_bytes
from capturing import fresh_python
from default_sizes import default_sizes

from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

DATA = Path(__file__).parents[1] / "data"
RUN = DATA / "nccl-straggler"
LINE = r"\d\d:\d\d:\d\d commtrace\.(reading|analysis): "


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def said(capsys, *words: object) -> list[str]:
    assert main(["breakdown", "--whole", *map(str, words)]) == 0
    return capsys.readouterr().err.splitlines()


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_unless_asked_for(run_dir, capfd, monkeypatch, workers):
    default_sizes(monkeypatch, process_bytes=0)
    analyse(run_dir, workers=workers)
    assert main(["breakdown", "--whole", str(run_dir), "--workers", str(workers)]) == 0
    assert capfd.readouterr().err == ""


def test_the_library_sets_no_level_and_no_handler():
    main(["breakdown", "--verbose", str(RUN)])
    logger = logging.getLogger("commtrace")
    assert logger.level == logging.NOTSET
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("workers", [1, 2])
def test_each_file_and_its_format(run_dir, capsys, monkeypatch, workers):
    default_sizes(monkeypatch, process_bytes=0)
    lines = said(capsys, run_dir, "--verbose", "--workers", workers)
    assert all(re.match(LINE, line) for line in lines)
    for path in run_dir.glob("*.json.gz"):
        size = path.stat().st_size
        assert sum(f"'{path}': read as Kineto, {size} bytes, in " in line for line in lines) == 1
    assert sum(("this process" if workers == 1 else "2 other processes") in line for line in lines) == 1


@pytest.mark.slow
def test_new_interpreters_send_what_they_log(run_dir):
    """A process with threads is not forked."""
    done = fresh_python(
        "-c",
        "import sys, threading; from commtrace.cli import main\n"
        "from commtrace.analysis.recording.options import ReadOptions, ReadSizes\n"
        "ReadOptions.__init__.__kwdefaults__['sizes'] = ReadSizes(process_bytes=0)\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"sys.exit(main(['breakdown', '--verbose', '--workers', '2', {str(run_dir)!r}]))",
    )
    assert done.returncode == 0
    assert done.stderr.count("read as Kineto") == 4


@pytest.mark.slow
def test_a_cache_and_a_recording_instead(run_dir, capsys, monkeypatch):
    default_sizes(monkeypatch, cache_bytes=0)
    assert sum("cached in" in line for line in said(capsys, "--verbose", run_dir)) == 4
    again = said(capsys, "--verbose", run_dir)
    assert sum("its cache is used instead" in line for line in again) == 4
    assert not any("read as" in line for line in again)
    for cache in (run_dir / ".commtrace-cache").iterdir():
        cache.write_bytes(cache.read_bytes()[:-9])
    lines = said(capsys, "--verbose", run_dir)
    assert sum(line.endswith("': its cache is damaged") for line in lines) == 4
    assert sum("read as Kineto" in line for line in lines) == 4


@pytest.mark.slow
def test_what_goes_another_way(tmp_path, capsys, monkeypatch):
    default_sizes(monkeypatch, process_bytes=1, part_bytes=1)
    trace = Trace(0, 1)
    for number in range(12_000):
        trace.kernel("gemm", number * 1000, 500)
    path = trace.write(tmp_path, gz=False)
    lines = said(capsys, "--verbose", path, "--workers", "2", "--no-cache")
    assert any(f"'{path}': read as Kineto, {path.stat().st_size} bytes, in 8 parts" in line for line in lines)
    write_bytes(path, path.read_bytes()[:-40])
    assert main(["breakdown", "--verbose", "--keep-going", "--workers", "2", "--no-cache", str(path)]) == 1
    told = capsys.readouterr().err
    assert "cannot be read in parts, so it is read as a whole" in told


def test_names_move_no_cursor(tmp_path, capsys):
    folder = Path(shutil.copytree(RUN, tmp_path / "x\x1b[31my\n"))
    told = "\n".join(said(capsys, "--verbose", folder))
    assert "x\\x1b[31my" in told
    assert "\x1b" not in told
    assert all(re.match(LINE, line) for line in told.splitlines())


def test_commands_that_take_it_say_so(capsys):
    for command in (["breakdown"], ["table", "kernels"], ["compare"], ["hang"], ["watch"]):
        assert main([*command, "--help"]) == 0
        assert "--verbose" in capsys.readouterr().out
