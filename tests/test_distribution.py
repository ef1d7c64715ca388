"""The wheel, in an empty environment without torch: the analyser works, the profiler says what it lacks."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("analysis/", "commtrace/", "profiling/")
VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


def run(*command: str | Path, path: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """In that environment alone, or with the libraries in the folder `path`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_the_wheel_holds_every_module() -> None:
    find = pytest.importorskip("setuptools").find_namespace_packages
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    given = toml.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    found = {ROOT / name.replace(".", "/") for name in find(str(ROOT), given["exclude"], given["include"])}
    parts = [ROOT / "commtrace", *(path for path in (ROOT / "commtrace").iterdir() if path.is_dir())]
    folders = {path.parent for part in parts for path in part.rglob("*.py")}
    assert len(folders) > 50
    assert found == folders


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == VERSION


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the console scripts of an environment that holds nothing but the wheel and what it needs."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("distribution")
    sources = folder / "sources"
    listed = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard")
    if listed.returncode:
        pytest.skip("needs a git checkout to copy the sources from")
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists() and name.startswith((*PACKAGES, "pyproject", "README", "LICENSE")):
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, sources / name, follow_symlinks=False)
    built = run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, sources)
    assert built.returncode == 0, built.stderr
    venv.create(folder / "venv", with_pip=True)
    (wheel,) = folder.glob("*.whl")
    installed = run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", wheel)
    assert installed.returncode == 0, installed.stderr
    return folder / "venv/bin"


@pytest.mark.slow
def test_the_analyser_prints_the_summary_without_torch(scripts: Path, gloo_run: Path) -> None:
    assert run(scripts / "python", "-c", "import torch").returncode == 1
    done = run(scripts / "commtrace", gloo_run, cwd=scripts)
    assert done.returncode == 0, done.stderr
    assert ": 2 ranks on " in done.stdout
    assert "Bus bandwidth" in done.stdout


@pytest.mark.slow
def test_one_import_has_everything(scripts: Path, gloo_run: Path) -> None:
    code = (
        "import sys, commtrace; from commtrace import capture; assert not {'torch', 'pandas'} & {*sys.modules}; "
        f"print(len(commtrace.analyse({str(gloo_run)!r}).calls), commtrace.__version__, commtrace.__path__)"
    )
    done = run(scripts / "python", "-c", code, cwd=scripts)
    calls, version, *folders = done.stdout.split(maxsplit=2)
    assert (calls, version) == ("16", VERSION), done.stderr
    assert str(folders).count("commtrace") == 1  # nothing else of the environment is to be found within it
    code = "import commtrace; commtrace.capture('run')"
    assert "needs it: pip install " in run(scripts / "python", "-c", code, cwd=scripts).stderr


@pytest.mark.slow
def test_one_command_lists_everything_and_says_what_is_missing(scripts: Path) -> None:
    shown = run(scripts / "commtrace", "--help", cwd=scripts)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: commtrace [OPTIONS]" in shown.stdout
    assert "  train  " in shown.stdout
    assert "--install-completion" in shown.stdout
    for command in ("train", "run", "sweep", "comms", "gemm", "layers", "capacity", "lab"):
        assert run(scripts / "commtrace", command, "--help", cwd=scripts).returncode == 0
    assert run(scripts / "commtrace", "--version", cwd=scripts).stdout == f"commtrace {VERSION}\n"


@pytest.mark.slow
def test_a_shell_completes_the_command(scripts: Path) -> None:
    code = 'eval "$(./commtrace --show-completion)"; complete -p commtrace; '
    code += "COMP_WORDS=(./commtrace table lat); COMP_CWORD=2; "
    code += '_commtrace_completion ./commtrace; echo "${COMPREPLY[@]}"'
    done = run("bash", "-c", code, cwd=scripts)
    assert done.stdout.split("\n")[-2:] == ["lateness late-work", ""], done.stdout + done.stderr


@pytest.mark.slow
def test_with_torch_the_command_captures_and_analyses(scripts: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    libraries = str(Path(torch.__file__).parents[1])
    shown = run(scripts / "commtrace", "train", "-h", path=libraries, cwd=scripts)
    assert "commtrace train --workers 2" in shown.stdout, shown.stderr
    options = ("--parallel", "single", "--device", "cpu", "--batch-size", "2", "--out", tmp_path, "--run-name", "one")
    short = ("--image-size", "16", "--wait", "1", "--warmup", "1", "--active", "3", "--steps", "6")
    done = run(scripts / "commtrace", "train", *options, *short, path=libraries, cwd=scripts)
    assert done.returncode == 0, done.stderr
    assert f"commtrace {tmp_path / 'one'}" in done.stdout + done.stderr
    done = run(scripts / "commtrace", tmp_path / "one", cwd=scripts)
    assert done.returncode == 0, done.stderr
    assert "No communication was traced." in " ".join(done.stdout.split())
    assert re.search(r"^(A step takes|Steps .* take) ", done.stdout, re.MULTILINE)  # three may differ on a busy machine
