"""One command and one import, in a checkout. Installed: tests/installed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import a_sample

import commtrace
from commtrace.analysis.core.declaring import Topic
from commtrace.cli import main
from commtrace.command_line import parser_for
from commtrace.registry import COMMANDS, FORMER, FORMER_OPTIONS, table_commands

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "tests/data/nccl-straggler"
CAPTURING = [name for name, row in COMMANDS.items() if row.captures]
BEFORE = [
    "verdicts",
    "remedies",
    "tensorboard-copy",
    "tensorboard-scalars",
    "account",
    "steps",
    "gaps",
    "syncs",
    "launches",
    "queue",
    "contention",
    "copies",
    "kernels",
    "gpus",
    "counters",
    "calls",
    "collectives",
    "traffic",
    "proxies",
    "fits",
    "participation",
    "groups",
    "places",
    "hosts",
    "rank_steps",
    "waits",
    "lateness",
    "pipeline",
    "experts",
    "allocations",
    "late_work",
    "hangs",
    "clocks",
    "releases",
    "attribution",
    "critical-path",
    "replay",
    "scaling",
    "subtraction",
    "training",
    "capture",
]
"""Every command that was renamed, and every table: without `table` they are told where they stand."""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def test_everything_is_there_and_in_dir() -> None:
    assert set(commtrace.__all__) <= set(dir(commtrace))
    for name in commtrace.__all__:
        assert getattr(commtrace, name) is not None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = commtrace.no_such_thing


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys; from commtrace import capture; sys.exit(bool({'torch', 'pandas', 'typer'} & {*sys.modules}))"
    assert python("-c", code).returncode == 0


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    [written] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert commtrace.__version__ == written
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"commtrace {written}\n"


def listed(text: str) -> list[str]:
    """The commands in a help, in its order."""
    commands = text.partition("Show this message and exit.")[2]
    return re.findall(r"^  ([a-z][\w-]+) ", commands, re.MULTILINE)


def test_help_lists_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    assert listed(capsys.readouterr().out) == [name for name in COMMANDS if " " not in name]
    assert main(["export", "-h"]) == 0
    assert [f"export {name}" for name in listed(capsys.readouterr().out)] == [n for n in COMMANDS if " " in n]


def test_table_alone_lists_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    shown = capsys.readouterr().out
    assert listed(shown) == [*table_commands()]
    assert main(["table", "--help"]) == 0
    assert capsys.readouterr().out == shown
    topics = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)[1:]
    assert topics == [topic.value for topic in Topic if topic is not Topic.scale]  # whose one table `watch` prints


def test_names_have_hyphens() -> None:
    assert not [name for name in (*COMMANDS, *table_commands()) if "_" in name]


@pytest.mark.parametrize("word", BEFORE)
def test_a_former_command_names_the_new_one(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "traces/resnet18-ddp-w2"]) == 2
    assert main([word, "--help"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [sentence, again] = err.splitlines()
    assert sentence == again
    named = re.fullmatch(rf"error: `commtrace {word}` is now `commtrace (.*)`", sentence)
    assert named is not None, sentence
    if named[1] in CAPTURING:
        pytest.importorskip("torch")
    assert main([*named[1].split(), "--help"]) == 0


def test_all_that_was_renamed_is_tested() -> None:
    assert set(BEFORE) >= set(FORMER)
    assert {word.replace("_", "-") for word in BEFORE} >= set(table_commands()) - set(COMMANDS)


@pytest.mark.parametrize(("command", "option"), FORMER_OPTIONS)
def test_a_former_option_names_the_new_one(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    now = FORMER_OPTIONS[command, option]
    for words in ([option, "0-1"], [f"{option}=0-1"]):
        assert main([command, *words, "traces/resnet18-ddp-w2"]) == 2
        assert capsys.readouterr().err == f"error: `{option}` of `commtrace {command}` is now `{now}`\n"
    assert main([command, "--help"]) == 0
    assert f"  {now} " in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--ranks", "64"], ["--ranks=64"], ["--ranks", "dp=64"], ["--ranks=dp=64"]])
def test_a_number_of_ranks_is_the_world_size_now(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words, "traces/resnet18-ddp-w2"]) == 2
    assert re.match(r"error: `--ranks (dp=)?64` of .* is now `--world-size (dp=)?64`", capsys.readouterr().err)


def test_a_rank_alone_can_still_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--ranks", "99-99", "traces/resnet18-ddp-w2"]) == 1
    assert "no trace of rank 99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("late_work", "it is `commtrace table late-work`"),
        ("breakdown_steps", "it is `commtrace breakdown --by step`"),
        ("hang-waits", "it is `commtrace hang --by wait`"),
        ("predictions", "it is `commtrace predict`"),
        ("kernel", "did you mean kernels?"),
        ("timings", "`commtrace table` lists all"),
        ("xyzzy", "`commtrace table` lists all"),
    ],
)
def test_a_table_by_another_name(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", word, "run"]) == 2
    assert capsys.readouterr().err == f"error: no such table: {word}; {said}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("t.csv", "rank,device,"),
        ("t.json", '"rows": ['),
        ("t.MD", "| rank |"),
        ("t.tex", "{tabular}"),
        ("t.txt", "    3  3  "),
    ],
)
def test_the_suffix_of_the_output_chooses_its_format(
    name: str, holds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["breakdown", "--no-cache", "-o", str(tmp_path / name), str(RUN)]) == 0
    assert holds in (tmp_path / name).read_text(encoding="utf-8")
    assert main(["breakdown", "--no-cache", "-f", "json", "-o", str(tmp_path / name), str(RUN)]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("{")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_hang_takes_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", "--no-cache", str(RUN)]) == 0
    assert capsys.readouterr().out == "no collective hangs\n"
    assert main(["hang", "--no-cache", "-f", "csv", str(RUN)]) == 0
    assert capsys.readouterr().out.startswith("collective,process_group,")
    assert main(["hang", "--by", "wait", str(RUN)]) == 2
    assert "there are only traces" in " ".join(capsys.readouterr().err.split())
    assert main(["hang", "--ranks", "0", str(ROOT / "tests/data/hung-gloo")]) == 2
    assert "dumps are read whole" in capsys.readouterr().err


@pytest.mark.slow
def test_help_imports_neither_torch_nor_pandas() -> None:
    for words in ([], ["--help"], ["table"], ["breakdown", "--help"], ["table", "kernels", "--help"]):
        code = (
            f"import sys; from commtrace.cli import main; main({words}); "
            "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'numpy')))"
        )
        assert python("-c", code).returncode == 0, words


@pytest.mark.parametrize("command", [name for name, row in COMMANDS.items() if row.module])
def test_help_of_every_option_is_a_sentence(command: str) -> None:
    if command in CAPTURING:
        pytest.importorskip("torch")
    parser: Any = parser_for(command.split())
    for word in command.split():
        parser = parser.commands[word]
    texts = {parameter.name: parameter.help for parameter in parser.params if getattr(parameter, "help", None)}
    assert {name: text for name, text in texts.items() if not re.match(r"(?s)[A-Z].*\.$", text)} == {}


@pytest.mark.parametrize("command", [*CAPTURING, "table kernels", "breakdown", "export inductor"])
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command in CAPTURING:
        pytest.importorskip("torch")
    assert main([*command.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: commtrace {command} [OPTIONS]")
    assert "\nOptions:\n" in shown
    assert not set("╭│╰") & set(shown)


def test_every_option_has_its_name_in_lower_case() -> None:
    """With typer 0.27 an option without a name, but with a placeholder like its name, is called `--LAYER`."""
    pytest.importorskip("torch")
    for name, row in COMMANDS.items():
        if row.module and " " not in name:
            options = [option for one in parser_for([name]).commands[name].params for option in one.opts]
            assert [option for option in options if option.startswith("--") and option != option.lower()] == []


@pytest.mark.parametrize("words", [["train"], ["run", "train.py"], ["comms"]])
def test_without_torch_a_line_says_what_to_install(words: list[str]) -> None:
    done = without_torch(*words)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    needed = shlex.split(line.removeprefix("error: torch is not installed, and capturing needs it: pip install "))
    assert {"torch", "torchvision"} <= {re.split("[<>=]", each)[0] for each in needed}


@pytest.mark.parametrize("command", CAPTURING)
def test_help_needs_no_torch(command: str) -> None:
    done = without_torch(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: commtrace {command} ")


def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules['torch'] = None; from commtrace.cli import main; sys.exit(main({list(words)!r}))"
    return python("-c", code)


@pytest.mark.parametrize(
    ("typed", "options"),
    [(["help"], ["--help"]), (["version"], ["--version"]), (["help", "table", "ranks"], ["table", "ranks", "--help"])],
)
def test_help_and_version_are_words_as_well(typed, options, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed) == 0
    shown = capsys.readouterr().out
    assert main(options) == 0
    assert capsys.readouterr().out == shown
    (tmp_path / typed[0]).mkdir()
    assert main(typed[:1]) == 1, "a folder without traces"


@pytest.mark.parametrize(
    ("typed", "command"), [("brekdown", "breakdown"), ("trian", "train"), ("Calls", "table calls")]
)
def test_a_mistyped_command(capsys: pytest.CaptureFixture[str], typed: str, command: str) -> None:
    assert main([typed, "run"]) == 2
    assert capsys.readouterr().err == f"error: no such command or folder: {typed}; did you mean {command}?\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--no-cache breakdown run", "breakdown --no-cache run"),
        ("--ranks 0-3 idle 'my run' --details", "idle --ranks 0-3 'my run' --details"),
        ("--keep-going table kernels run", "table kernels --keep-going run"),
        ("--by step breakdown run", "breakdown --by step run"),
        ("traces/a ranks --sort late", "ranks traces/a --sort late"),
        ("--cache summary idle run", "idle --cache summary run"),
    ],
)
def test_options_before_the_command(capsys: pytest.CaptureFixture[str], typed: str, meant: str) -> None:
    assert main(shlex.split(typed)) == 2
    assert capsys.readouterr().err == f"error: options and runs stand behind the command: `commtrace {meant}`\n"


@pytest.mark.parametrize("typed", ["--no-cache breakdown", "--cache idle breakdown", "--ranks 0-3 breakdown"])
def test_a_run_that_is_called_as_a_command_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (tmp_path / "breakdown").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(typed.split()) == 1
    assert "breakdown: holds no Kineto trace" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["traces/brekdown", "./brekdown", "my-first-run", "xyzzy"])
def test_a_mistyped_path(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert main([path]) == 1
    assert "no such file or directory; expected a run directory" in capsys.readouterr().err


def test_a_folder_that_exists_is_no_mistyped_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brekdown").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["brekdown"]) == 1
    assert "holds no Kineto trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["table", "lat"], {"late-work", "lateness"}),
        (["tra"], {"train"}),
        (["export", "ten"], {"tensorboard-copy", "tensorboard-scalars"}),
        (["table", "kernels", "--to"], {"--top"}),
        (["explain", "launch-"], {"launch-bound"}),
        (["ranks", "--sort", "caused_w"], {"caused_wait_ns", "caused_wait_frac"}),
        (["table", "lateness", "--where", "extra_com"], {"extra_compute_ns", "extra_comm_ns"}),
    ],
)
def test_a_shell_completes_commands_options_terms_and_columns(words: list[str], found: set[str]) -> None:
    code = "from commtrace.cli import main; main([])"
    asked = {"COMP_WORDS": "\n".join(["commtrace", *words]), "COMP_CWORD": str(len(words))}
    done = python("-c", code, _COMMTRACE_COMPLETE="complete_bash", **asked)
    assert set(done.stdout.split()) == found, done.stderr


@pytest.mark.parametrize("command", a_sample(CAPTURING, 2))
def test_help_has_one_name_for_the_command(command: str) -> None:
    pytest.importorskip("torch")
    shown = " ".join(python("-m", "commtrace", command, "--help").stdout.split())
    assert f"Usage: commtrace {command}" in shown
    assert "python -m commtrace" not in shown


def test_both_spellings_are_taken() -> None:
    for name in ("analyse", "analyse_sweep", "analyse_training", "analyse_cycles"):
        assert getattr(commtrace, name.replace("analyse", "analyze")) is getattr(commtrace, name)
    with pytest.raises(AttributeError, match="'analyzer'"):
        commtrace.analyzer  # noqa: B018 - whether it is there
