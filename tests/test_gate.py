"""The action at the top: its steps, run by bash as a runner does, on captures whose truth is known.

The runner is this file: it fills in `${{ }}` of `env:`, `with:` and `if:`, and nothing else.
"""

import os
import random
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import MS, Trace
from samples import with_slow

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0])
BASH = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"]


@dataclass
class Job:
    """One job on a runner: its folder, its files, and what its steps have said."""

    folder: Path
    pull_request: int | None = None
    path: str = ""
    log: str = ""
    contexts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.temp = self.folder / "runner temp"
        self.temp.mkdir()
        pull_request = {"number": self.pull_request} if self.pull_request else {}
        event = {"pull_request": pull_request}
        self.contexts = {"github": {"token": "t", "repository": "me/mine", "event": event}, "steps": {}}
        self.path = os.pathsep.join([self.path] * bool(self.path) + [str(self._commands()), os.environ["PATH"]])

    def _commands(self) -> Path:
        """A folder with the command, as installed."""
        folder = self.temp / "bin"
        folder.mkdir()
        write_command(folder / "commtrace", f'exec "{sys.executable}" -m commtrace "$@"')
        return folder

    @property
    def summary(self) -> str:
        return self._file("summary").read_text(encoding="utf-8")

    def _file(self, name: str) -> Path:
        path = self.temp / name
        path.touch()
        return path

    def act(self, **inputs: object) -> int:
        """Run the action with these inputs; return the exit code of the job."""
        known = {name: about.get("default") for name, about in ACTION["inputs"].items()}
        given = {name.replace("_", "-"): _text(value) for name, value in inputs.items()}
        assert given.keys() <= known.keys()
        self.contexts["inputs"] = {**known, **given}
        for step in ACTION["runs"]["steps"]:
            code = self.run(step)
            if code:
                return code
        return 0

    def run(self, step: dict[str, Any]) -> int:
        """Run one step that is a script."""
        if "if" in step and not self.holds(step["if"]):
            return 0
        output = self._file(f"output of {len(list(self.temp.iterdir()))}")
        given = {name: self.filled(value) for name, value in step.get("env", {}).items()}
        files = {
            "GITHUB_OUTPUT": output,
            "GITHUB_STEP_SUMMARY": self._file("summary"),
            "GITHUB_PATH": self._file("path"),
        }
        places = {"RUNNER_TEMP": self.temp, "GITHUB_ACTION_PATH": ROOT, "PATH": self.path, "PYTHONPATH": ROOT}
        env = os.environ | {name: str(value) for name, value in (files | places | given).items()}
        script = self.temp / "script.sh"
        script.write_text(step["run"], encoding="utf-8")
        done = subprocess.run(
            [*BASH, script], cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        self.log += done.stdout + done.stderr
        pairs = (line.partition("=") for line in output.read_text(encoding="utf-8").splitlines())
        self.contexts["steps"][step.get("id", "")] = {"outputs": {name: value for name, _, value in pairs}}
        return done.returncode

    def filled(self, text: object) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: str(self.value(found[1]) or ""), _text(text))

    def value(self, path: str) -> Any:
        found: Any = self.contexts
        for name in path.split("."):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        return found

    def holds(self, condition: str) -> bool:
        parts = condition.removeprefix("${{ ").removesuffix(" }}").split(" && ")
        sides = [part.partition(" == ") for part in parts]
        return all(self.value(left) == right.strip("'") if equal else self.value(left) for left, equal, right in sides)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_command(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def captures(
    folder: Path, name: str, count: int, *, longer: float = 0.0, capture: float, step: float, seed: int = 0
) -> None:
    """Captures of steps with 20 ms of compute and 10 ms idle.

    Compute takes `longer`, and differs between captures and between steps by these standard deviations, all of them
    parts of it.
    """
    draw = random.Random(f"{seed} {name}")
    for number in range(count):
        trace, begin, off = Trace(0, 1), 0, draw.gauss(1 + longer, capture)
        for index in range(16):
            compute = round(20 * MS * off * draw.gauss(1, step))
            length = round(compute * 1.5)
            trace.step(index + 2, begin, begin + length).kernel("gemm", begin, compute, launch=begin)
            begin += length
        trace.write(folder / f"{name}-{number}", "node_0.0001.pt.trace.json.gz")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def judged(job: Job, **inputs: object) -> int:
    return job.act(baseline="before-*", candidate="\n  after-*  \n", **inputs)


@pytest.mark.slow
def test_steps_that_take_longer_fail_the_job(job: Job) -> None:
    captures(job.folder, "before", 4, capture=0.002, step=0.005)
    captures(job.folder, "after", 4, longer=0.05, capture=0.002, step=0.005)
    assert judged(job, fail_above=2) == 3
    assert job.contexts["steps"]["compare"]["outputs"]["result"] == "slower"
    assert "### commtrace: steps take longer\n" in job.summary
    assert "| compute, gemm | +1." in job.summary
    assert "\n    slower: the steps of B take " in job.summary
    assert "::error title=commtrace::steps take longer" in job.log


@pytest.mark.slow
def test_equal_steps_pass(job: Job) -> None:
    captures(job.folder, "before", 4, capture=0.002, step=0.005)
    captures(job.folder, "after", 4, capture=0.002, step=0.005)
    assert judged(job, fail_above=2) == 0
    assert "### commtrace: steps take no longer than the limit allows\n" in job.summary
    assert "title=commtrace" not in job.log


@pytest.mark.slow
def test_noisy_captures_are_neutral_and_it_is_said(job: Job) -> None:
    captures(job.folder, "before", 1, capture=0.05, step=0.2)
    captures(job.folder, "after", 1, longer=0.05, capture=0.05, step=0.2)
    assert judged(job, fail_above=2) == 0
    assert job.contexts["steps"]["compare"]["outputs"] == {
        "result": "cannot-tell",
        "exit-code": "4",
        "summary": job.contexts["steps"]["compare"]["outputs"]["summary"],
    }
    assert "### commtrace: cannot tell whether steps take longer, so this check is neutral\n" in job.summary
    assert "\n    cannot tell: " in job.summary
    assert "::notice title=commtrace::cannot tell" in job.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"baseline": "nowhere"}, 1, "no such file or directory"),
        ({"baseline": "none-*"}, 1, "no such file or directory"),
        ({"baseline": " \n"}, 2, "Missing argument"),
        ({"fail_above": "much"}, 2, "much"),
    ],
)
def test_what_cannot_be_compared_fails_the_job(job: Job, given: dict[str, str], code: int, said: str) -> None:
    captures(job.folder, "before", 1, capture=0, step=0.01)
    assert job.act(**{"baseline": "before-0", "candidate": "before-0", **given}) == code
    assert said in " ".join(job.summary.split())
    assert "::error title=commtrace::the captures were not compared" in job.log


HOSTILE = "$(touch hit) `touch hit`; touch hit & \"'; touch hit #"


@pytest.mark.parametrize("name", with_slow(["baseline"], ["candidate", "fail_above", "comment"]))
def test_inputs_are_never_run(job: Job, name: str) -> None:
    inputs = {"baseline": "none", "candidate": "none", "fail_above": 5, name: f"{HOSTILE}\n--output=hit\n{HOSTILE}"}
    assert job.act(**inputs) in (1, 2)
    assert not (job.folder / "hit").exists()


@pytest.mark.slow
def test_file_names_are_never_options_or_commands_of_the_runner(job: Job) -> None:
    captures(job.folder, "-o hit", 1, capture=0, step=0.01)
    odd = "odd\n::error::$(touch hit)\n"
    captures(job.folder, odd, 1, capture=0, step=0.01)
    assert job.act(baseline="-o*", candidate="odd*", fail_above=90) == 0, job.log
    assert not (job.folder / "hit").exists()
    stopped = re.search(r"^::stop-commands::(\w{32})\n(.*?)^::\1::$", job.log, re.MULTILINE | re.DOTALL)
    assert stopped is not None
    assert "::error::" not in job.log.replace(stopped[0], "")


def test_scripts_take_values_from_variables_alone() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"]]
    assert len(scripts) == 4
    assert [script for script in scripts if "${{" in script] == []


@pytest.mark.slow
def test_the_pull_request_gets_one_comment(tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    calls = tmp_path / "calls"
    write_command(stubs / "gh", f'printf "%s|" "$@" >> "{calls}"; echo >> "{calls}"; cat "{tmp_path}/found" 2>&-; true')
    captures(tmp_path, "before", 1, capture=0, step=0.01)
    job = Job(tmp_path, pull_request=7, path=str(stubs))
    assert job.act(baseline="before-0", candidate="before-0", fail_above=90, comment=True) == 0
    listed, posted = calls.read_text().splitlines()
    assert listed.startswith("api|--paginate|repos/me/mine/issues/7/comments|--jq|")
    assert posted.startswith("api|--method|POST|repos/me/mine/issues/7/comments|-F|body=@")
    body = Path(posted.partition("body=@")[2].rstrip("|")).read_text()
    assert body == f"<!-- commtrace compare -->\n{job.summary}"
    calls.unlink()
    (tmp_path / "found").write_text("12\n13\n")
    assert job.act(baseline="before-0", candidate="before-0", fail_above=90, comment=True) == 0
    assert calls.read_text().splitlines()[1].startswith("api|--method|PATCH|repos/me/mine/issues/comments/12|-F|body=@")
    write_command(stubs / "gh", "exit 1")
    assert job.act(baseline="before-0", candidate="before-0", fail_above=90, comment=True) == 0
    assert "::warning title=commtrace::the comparison could not be written" in job.log


def test_it_installs_the_command_where_there_is_none(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    write_command(tools / "python3", 'mkdir -p "$3/bin"; printf \'#!/bin/bash\\necho "$@"\' > "$3/bin/pip"; '
                  '/bin/chmod +x "$3/bin/pip"')  # fmt: skip
    job = Job(tmp_path)
    job.path = f"{tools}{os.pathsep}/bin"
    if shutil.which("commtrace", path=job.path):
        pytest.skip("this machine has the command for all users")
    assert job.run(ACTION["runs"]["steps"][0]) == 0, job.log
    assert job.log == f"install --quiet {ROOT}\n"
    assert (job.temp / "path").read_text() == f"{job.temp}/commtrace/bin\n"


@pytest.mark.slow
def test_the_workflow_of_the_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "resnet18-ddp-w2", tmp_path / "traces" / "resnet18-ddp-w2")
    job = Job(tmp_path)
    (steps,) = (one["steps"] for one in WORKFLOW["jobs"].values())
    ran = 0
    for step in steps:
        if "run" in step:
            assert job.run(step) == 0, job.log
        elif step["uses"] == "./":
            assert job.act(**{name.replace("-", "_"): value for name, value in step["with"].items()}) == 0, job.log
        else:
            assert step["uses"].startswith("actions/checkout@")
            continue
        ran += 1
    assert ran == 2
    assert job.contexts["steps"]["compare"]["outputs"]["result"] == "cannot-tell"


def test_the_page_names_every_input_and_result() -> None:
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w-]+)`", rows))
    script = next(step["run"] for step in ACTION["runs"]["steps"] if step.get("id") == "compare")
    assert {*ACTION["inputs"], *re.findall(r"result=([\w-]+)", script)} <= named
