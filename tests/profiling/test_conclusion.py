"""What rank 0 says and writes after a capture, and how long anybody waits for it."""

import signal
import sys
import time
from signal import Signals
from types import SimpleNamespace

import pytest

from commtrace.profiling.base.keeping import Keeping
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.sessions.afterwards import conclusion
from commtrace.profiling.sessions.afterwards.aside import Printed
from commtrace.profiling.sessions.afterwards.conclusion import Conclusion, Patience
from commtrace.profiling.sessions.afterwards.hand_over import Allowance, Taken


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when told."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(conclusion, "say", lines.append)
    return lines


def lasts(clock, is_over) -> float:
    """How long such a wait is, in seconds."""
    begin = clock[0]
    while not is_over():
        clock[0] += 0.5
    return clock[0] - begin


@pytest.mark.parametrize(
    ("signum", "failed", "seconds"),
    [
        (None, False, 60), (None, True, 15), (signal.SIGTERM, False, 7), (signal.SIGHUP, True, 7),
        (signal.SIGINT, False, 0),
    ],
)  # fmt: skip
def test_how_long_is_waited(signum, failed, seconds, clock) -> None:
    received = None if signum is None else Signals(signum)
    assert lasts(clock, Patience(lambda: received, failed).within(60)) == seconds
    assert lasts(clock, Patience(lambda: received, failed).within(0)) == 0


def test_a_signal_that_comes_meanwhile_makes_it_short(clock) -> None:
    is_over = Patience(lambda: Signals.SIGTERM if clock[0] >= 1020 else None).within(60)
    assert lasts(clock, is_over) == 27


def rank_0(tmp_path, shown=print, keeping=Keeping(analyse=True)) -> Conclusion:  # noqa: B008
    return Conclusion(keeping, Identity(0, 0, 1, "host"), tmp_path, shown)


def analysed(monkeypatch, tmp_path, *outcomes: Printed) -> list[str]:
    """What is shown where the analysis prints this, one command after the other."""
    shown: list[str] = []
    left = list(outcomes)
    monkeypatch.setattr(conclusion, "run_aside", lambda arguments, is_over: left.pop(0))
    rank_0(tmp_path, shown.append).analyse(Patience(lambda: None))
    assert left == []
    return shown


def test_the_summary_is_shown_and_written(monkeypatch, tmp_path, said) -> None:
    (tmp_path / "report.html").touch()
    assert analysed(monkeypatch, tmp_path, Printed("wait \u2588\n"), Printed()) == ["wait \u2588"]
    assert (tmp_path / "summary.txt").read_text(encoding="utf-8") == "wait \u2588\n"
    assert said == [f"report: {tmp_path}/report.html"]


def test_the_summary_keeps_the_capture_in_the_history(monkeypatch, tmp_path) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(conclusion, "run_aside", lambda arguments, _: asked.append(arguments) or Printed("text"))
    monkeypatch.chdir(tmp_path)
    end = rank_0(tmp_path, lambda _: None, Keeping(analyse=True, history="captures.jsonl"))
    monkeypatch.chdir("/")  # as a script may
    end.analyse(Patience(lambda: None))
    assert [each[0] for each in asked if "--history" in each] == ["summary"]
    assert asked[0][asked[0].index("--history") + 1] == str(tmp_path / "captures.jsonl")


def test_a_damaged_file_costs_its_rank_only(monkeypatch, tmp_path, said) -> None:
    shown = analysed(monkeypatch, tmp_path, Printed("3 ranks\n", "x.ctrace: is damaged"), Printed(why="too late"))
    assert shown == ["3 ranks"]
    assert said[0].startswith("the summary is not complete: x.ctrace: is damaged; to analyse it later: ")
    assert said[1] == "there is no report: too late"


def test_an_analysis_that_fails_is_said_with_what_to_do(monkeypatch, tmp_path, said) -> None:
    assert analysed(monkeypatch, tmp_path, Printed(why="it took too long, and was ended")) == []
    assert said[0].startswith("the run is not analysed: it took too long, and was ended; to analyse it later: ")
    assert said[0].endswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files_does_not_hide_the_summary(monkeypatch, tmp_path, said) -> None:
    (tmp_path / "summary.txt").mkdir()
    assert analysed(monkeypatch, tmp_path, Printed("text"), Printed(why="no folder")) == ["text"]
    assert "summary.txt: cannot be written" in said[0]


def test_nobody_asked(monkeypatch, tmp_path, said) -> None:
    monkeypatch.setattr(conclusion, "run_aside", sys.exit)
    rank_0(tmp_path, keeping=Keeping("both")).analyse(Patience(lambda: None))
    rank_0(tmp_path).analyse(Patience(lambda: Signals.SIGINT))
    assert said == ["the run is not analysed: interrupted"]


IGNORED = (
    "messages in the name of rank 4 on the store of the process group did not verify, and were ignored: another "
    "process wrote them, or COMMTRACE_SECRET has to be the same for all ranks"
)


class ManyMissing:
    """A hand-over in which some ranks are missing."""

    def announce(self, run_dir: object) -> None:
        pass

    def take(self, run_dir: object, most: Allowance, is_over: object) -> Taken:
        assert most == Allowance(125_000_000, 3)
        return Taken({1: "silent", 2: "silent", 4: "silent", 5: "too large", 7: "silent"}, (4,))


def test_ranks_that_are_missing_are_told_by_reason(monkeypatch, tmp_path, said) -> None:
    monkeypatch.setattr(conclusion.HandOver, "of", lambda who: ManyMissing())
    (tmp_path / "host_7.0000.pt.trace.json.gz").touch()
    end = Conclusion(Keeping(analyse=True), Identity(0, 0, 8, "host"), tmp_path, print)
    facts = SimpleNamespace(schedule=SimpleNamespace(repeat=2))
    assert end.gather(facts, Patience(lambda: None), together=False) is None
    assert said == [
        "ranks 1-2, 4 are missing: silent",
        "rank 5 is missing: too large",
        "rank 7 is here only in part: silent",
        IGNORED,
    ]


def test_without_a_process_group_nobody_can_hand_over(tmp_path) -> None:
    end = Conclusion(Keeping(analyse=True), Identity(3, 3, 8, "host"), tmp_path, print)
    assert "no process group" in end.gather(None, Patience(lambda: None), together=False)
