"""What writers that were killed leave behind, and who removes it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import write_run
from capturing import ROOT, environment

from commtrace.cli import main
from commtrace.common import disk
from commtrace.common.disk import remove_partial_files, replace_file

WRITER = """
import sys
from pathlib import Path
from commtrace.common.disk import replace_file

def parts():
    yield b"begun"
    print("begun", flush=True)
    sys.stdin.readline()
    yield b", done"

replace_file(Path(sys.argv[1]), parts())
print("done", flush=True)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is in the midst of writing `kept`."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "kept")], cwd=ROOT, env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def partial_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.partial"))


def test_the_next_pack_removes_what_a_killed_one_left(writer, tmp_path, capsys) -> None:
    write_run(tmp_path, 1, [])
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(partial_files(tmp_path)) == 1
    assert main(["pack", str(tmp_path)]) == 0
    assert partial_files(tmp_path) == []
    assert len(list(tmp_path.glob("*.ctrace"))) == 1


def test_what_is_being_written_stays(writer, tmp_path) -> None:
    remove_partial_files(tmp_path)
    assert len(partial_files(tmp_path)) == 1
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "done\n"
    assert (tmp_path / "kept").read_bytes() == b"begun, done"
    assert partial_files(tmp_path) == []


def test_what_is_removed_before_it_is_locked_is_begun_again(tmp_path, monkeypatch) -> None:
    create, removed = disk.create, []

    def watched(path: Path, mode: int, within: int | None) -> int:
        descriptor = create(path, mode, within)
        if not removed:
            remove_partial_files(tmp_path)
            removed.append(path.exists())
        return descriptor

    monkeypatch.setattr(disk, "create", watched)
    replace_file(tmp_path / "kept", [b"content"])
    assert removed == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_of_another_machine_only_what_is_old_is_removed(tmp_path) -> None:
    names = [".0123456789abcdef.partial", ".0123abcd-0123456789abcdef.partial"]
    for name in names:
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    assert [path.name for path in partial_files(tmp_path)] == names
    for name in names:
        os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    remove_partial_files(tmp_path)
    assert partial_files(tmp_path) == []


def test_files_of_others_stay(tmp_path, monkeypatch) -> None:
    (tmp_path / ".download.partial").touch()
    (tmp_path / "data.partial").touch()
    (tmp_path / disk._partial_name()).mkdir()
    (tmp_path / disk._partial_name()).symlink_to("data.partial")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    before = sorted(tmp_path.iterdir())
    remove_partial_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / disk._partial_name()).touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    remove_partial_files(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(before) + 1


def test_a_folder_that_is_not_there_is_no_error(tmp_path) -> None:
    remove_partial_files(tmp_path / "nothing")
