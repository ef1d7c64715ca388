"""`commtrace_capture` as pytest hands it to the tests of others."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import MS, Collective, write_run
from capturing import ROOT, SCRIPTS, fresh_python

pytest_plugins = ["pytester"]
STRAGGLER = ROOT / "tests/data/nccl-straggler"
PLUGIN = "commtrace.integrations.pytest_plugin"
Tested = Callable[..., pytest.RunResult]


@pytest.fixture
def tested(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> Tested:
    """Runs a test with this body, as a project has it where commtrace is installed."""

    def run(*body: str) -> pytest.RunResult:
        lines = "".join(f"    {line}\n" for line in body)
        pytester.makepyfile(f"import commtrace\n\n\ndef test_it(commtrace_capture):\n{lines}")
        given = () if request.config.pluginmanager.has_plugin("commtrace") else ("-p", PLUGIN)
        return pytester.runpytest_inprocess("-rs", *given)

    return run


def reading(assertion: str, folder: Path = STRAGGLER) -> tuple[str, ...]:
    return (f"run = commtrace_capture.read({str(folder)!r})", f"run.{assertion}")


def test_it_is_found_by_pytest_and_costs_those_who_do_not_use_it_nothing() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ncommtrace = "{PLUGIN}"\n' in project
    beside = "import pytest, sys; before = {*sys.modules}; "
    done = fresh_python("-c", f"{beside}import {PLUGIN}; print(*sorted({{*sys.modules}} - before))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["commtrace", "commtrace.integrations", PLUGIN]


@pytest.mark.slow_cases(
    "assert_gain(most_frac=0.4)",
    "assert_gain(most_frac=0.01, remedy='no_copies')",
    "assert_gain(most_frac=0.25, remedy='overlap')",
)
@pytest.mark.parametrize(
    "assertion",
    [
        "assert_exposed_comm(most_frac=0.6)",
        "assert_gain(most_frac=0.4)",
        "assert_gain(most_frac=0.01, remedy='no_copies')",
        "assert_gain(most_frac=0.25, remedy='overlap')",
    ],
)
def test_what_is_so_passes(tested: Tested, assertion: str) -> None:
    tested(*reading(assertion)).assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assertion", "said"),
    [
        ("assert_exposed_comm(most_frac=0.1)", "*exposed communication takes 44.6% of a step (*% or more), and may"),
        ("assert_gain(most_frac=0.1)", "*no_straggler (rank 2 as fast as the others) gains 31.0% of a step (28.2% or"),
        ("assert_gain(most_frac=0.1, remedy='no_straggler')", "*no_straggler (rank 2*"),
    ],
)
def test_what_is_not_so_fails_and_says_why(tested: Tested, assertion: str, said: str) -> None:
    result = tested(*reading(assertion))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{said}*Rank 2 costs 1.5 ms of every 4.8 ms step*"])


def test_what_may_be_chance_does_not_fail(tested: Tested) -> None:
    """The mean of its two steps is 44.6 %, and may be 44.0 %."""
    tested(*reading("assert_exposed_comm(most_frac=0.443)")).assert_outcomes(passed=1)


def test_what_cannot_be_told_is_skipped_with_the_reason(tested: Tested, tmp_path: Path) -> None:
    write_run(tmp_path, 2, [Collective((0, 0), 10 * MS, elems=10**6)])
    result = tested(*reading("assert_exposed_comm(most_frac=0.1)", tmp_path))
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*commtrace cannot tell from *: 0 of its steps can be counted, and a mean needs two*"])


@pytest.mark.slow
def test_a_gain_that_is_not_known_is_skipped(tested: Tested, tmp_path: Path) -> None:
    shutil.copy(next(STRAGGLER.glob("*.json.gz")), tmp_path)  # of one rank: others are missing
    tested(*reading("assert_gain(most_frac=0.0)", tmp_path)).assert_outcomes(skipped=1)


def test_a_folder_without_traces_is_an_error(tested: Tested, tmp_path: Path) -> None:
    result = tested(*reading("assert_exposed_comm(most_frac=0.1)", tmp_path))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*NoTraces: *"])


@pytest.mark.slow
def test_a_script_on_two_ranks(tested: Tested) -> None:
    script = SCRIPTS / "users/hidden_or_not.py"
    result = tested(
        f"even = commtrace_capture.script({str(script)!r}, 0, workers=2)",
        f"late = commtrace_capture.script({str(script)!r}, 0.3, workers=2, options=['--active', '4'])",
        "assert even.folder != late.folder",
        "assert sorted(late.analysis.run.ranks) == [0, 1]",
        "late.assert_exposed_comm(most_frac=0.9)",
        "late.assert_gain(most_frac=0.2, remedy='overlap')",
        "late.assert_gain(most_frac=0.2)",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no_straggler (rank 1 as fast as the others) gains*"])


def test_a_script_that_fails(tested: Tested, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit('of mine')")
    result = tested(f"commtrace_capture.script({str(tmp_path / 'fails.py')!r})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*fails.py ended with exit code 1:", "*of mine*"])


def test_a_script_that_takes_too_long(tested: Tested, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)")
    result = tested(f"commtrace_capture.script({str(tmp_path / 'slow.py')!r}, timeout_s=0.5)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*slow.py took longer than 0.5 s*"])


@pytest.mark.slow
def test_a_loop_in_the_test_itself(tested: Tested) -> None:
    pytest.importorskip("torch")
    tested(
        "import torch",
        "with commtrace.capture(commtrace_capture.new_folder()) as session:",
        "    for _ in range(6):",
        "        torch.ones(64, 64) @ torch.ones(64, 64)",
        "        session.step()",
        "commtrace_capture.read(session.run_dir).assert_exposed_comm(most_frac=0.0)",
    ).assert_outcomes(passed=1)
