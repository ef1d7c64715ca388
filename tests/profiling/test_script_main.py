"""`run` makes a script believe that Python itself runs it. These scripts need no torch, so `run` imports none."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from capturing import ROOT, SCRIPTS, environment

USERS = SCRIPTS / "users"
NOTHING = "commtrace: nothing was captured: the script did not import torch\n"


def started(*args: object, cwd: Path = USERS, **options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env=environment() | options,
        input="from stdin",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def both(*args: object, **options: str) -> "tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]":
    """The same command line with Python alone, and under `run`."""
    ours = started("-m", "commtrace", "run", *args, **options)
    ours.stderr = ours.stderr.replace(NOTHING, "")
    return started(*args, **options), ours


@pytest.mark.parametrize(
    "args",
    [
        ["facts.py"],
        ["./facts.py", "one", "--out", "theirs", "--", "-m", "--workers"],
        [USERS / "facts.py", "--help"],
        ["facts.py", "--ending", "exit3"],
        ["facts.py", "--ending", "text"],
        ["facts.py", "--ending", "none"],
        ["facts.py", "--ending", "chdir"],
        ["facts.py", "--ending", "raise"],
        ["facts.py", "--ending", "hook"],
        ["facts.py", "--ending", "interrupt"],
        ["facts.py", "--no-such-option"],
        ["-m", "facts", "--out", "x"],
        ["-m", "package.relative", "-m", "x"],
        ["-m", "package"],
        ["package"],
    ],
    ids=lambda args: " ".join(map(str, args)).replace(str(USERS), ""),
)
def test_a_script_sees_and_does_the_same_as_without_us(args) -> None:
    alone, ours = both(*args)
    assert ours.stdout == alone.stdout
    assert ours.returncode == alone.returncode
    assert without_runpy(ours.stderr) == without_runpy(alone.stderr)


def without_runpy(stderr: str) -> list[str]:
    """Tracebacks of `python -m` begin with frames of Python's own."""
    return [line for line in stderr.splitlines() if "<frozen runpy>" not in line]


def test_the_cases_differ_in_more_than_nothing() -> None:
    alone, ours = both("facts.py", "--ending", "raise")
    assert alone.returncode == 1
    assert "bad luck" in ours.stderr
    assert "['from', 'stdin']" in ours.stdout
    assert "KeyError: 'the cause'" in ours.stderr
    assert str(ROOT / "profiling") not in ours.stderr


def test_an_interrupted_script_ends_by_the_signal() -> None:
    assert both("facts.py", "--ending", "interrupt")[1].returncode == -signal.SIGINT


def test_os_exit_is_immediate() -> None:
    assert both("facts.py", "--ending", "os_exit")[1].returncode == 5


def test_a_syntax_error_is_shown_as_such(tmp_path) -> None:
    (tmp_path / "wrong.py").write_text("def broken(:\n")
    alone, ours = both(tmp_path / "wrong.py")
    assert (ours.stdout, ours.stderr, ours.returncode) == (alone.stdout, alone.stderr, alone.returncode)


@pytest.mark.slow
def test_links_and_zip_files_are_run_as_python_runs_them(tmp_path) -> None:
    (tmp_path / "link.py").symlink_to(USERS / "facts.py")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.write(USERS / "package" / "__main__.py", "__main__.py")
    for name in ("link.py", "all.zip"):
        alone, ours = both(tmp_path / name)
        assert (ours.stdout, ours.stderr, ours.returncode) == (alone.stdout, alone.stderr, alone.returncode)


def test_safe_path_is_respected() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("needs PYTHONSAFEPATH, which Python 3.11 brought")
    alone, ours = both("facts.py", PYTHONSAFEPATH="1")
    assert ours.stdout == alone.stdout


@pytest.mark.slow_cases(
    "args5-error: --max-seconds 0: expected a number above 0\\n", "args7-users: expected a new or empty run directory"
)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["missing.py"], "error: missing.py: no such script; for a module, put -m before its name\n"),
        (["-m", "missing.module"], "error: -m missing.module: no module named missing.module that could be run\n"),
        (["--wait", "0", "--warmup", "0", "facts.py"], "error: --wait 0 --warmup 0: need at least 1 steps before"),
        (["--whole-run", "--active", "2", "facts.py"], "error: --active has no meaning with --whole-run"),
        (["--max-seconds", "2", "facts.py"], "error: --max-seconds is only for --whole-run"),
        (["--whole-run", "--max-seconds", "0", "facts.py"], "error: --max-seconds 0: expected a number above 0\n"),
        (["--run-name", "a/b", "facts.py"], "error: --run-name a/b: expected one folder name"),
        (["--out", os.pardir, "--run-name", "users", "facts.py"], "users: expected a new or empty run directory"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line(args, said) -> None:
    done = started("-m", "commtrace", "run", *args)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (done.stdout, done.returncode) == ("", 1 if "users" in args else 2)


def test_help_has_examples() -> None:
    done = started("-m", "commtrace", "run", "--help")
    assert "torchrun --nproc-per-node 8 -m commtrace run --run-name mine train.py" in done.stdout
