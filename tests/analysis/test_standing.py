"""Who of a running job is late and since when, told by pulses that are made here, and how a screen shows it."""

import io
import re
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from builders import MS

from commtrace.analysis.cli.scale.live import JobView, MetricsServer
from commtrace.analysis.errors import CannotServe
from commtrace.analysis.watching.captures import OnDemand
from commtrace.analysis.watching.exposition import exposition
from commtrace.analysis.watching.job import Job
from commtrace.analysis.watching.job_lines import JobNews, job_table
from commtrace.analysis.watching.pulses import Pulses
from commtrace.analysis.watching.standing import JobStanding, Onset, Standings
from commtrace.common import trigger
from commtrace.common.trigger import Pulse

HOUR_12 = int(time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))) * 10**9
SECOND = 10**9
AT_ONCE = (10.0, 11.0, 10.0, 11.0)
LATE = (10.0, 40.0, 10.0, 11.0)


class Ranks:
    """Ranks that write a pulse each second, and what a watch makes of them."""

    def __init__(self, ranks: int = 4, per_host: int = 8) -> None:
        self.standings, self.at_ns, self.step = Standings(), HOUR_12, 0
        self.ranks, self.per_host = ranks, per_host
        self.last: dict[int, Pulse] = {}

    def beat(self, alone_ms, times: int = 1, *, step_ms: float = 100.0, **more: object) -> JobStanding:
        for _ in range(times):
            self.at_ns += SECOND
            self.step += 10
            self.last = {
                rank: Pulse(
                    rank,
                    self.step,
                    self.at_ns,
                    round(step_ms * MS),
                    1.0,
                    f"node{rank // self.per_host:03d}",
                    None if alone_ms[rank] is None else round(alone_ms[rank] * MS),
                    None if alone_ms[rank] is None else "backward",
                    **more,
                )
                for rank in range(self.ranks)
            }
            found = self.standings.add(list(self.last.values()), self.last)
        return found


def late_of(standing: JobStanding) -> dict[int, int | None]:
    return {one.rank: one.late_ns for one in standing.ranks}


def test_who_works_longest_before_it_needs_others_is_late() -> None:
    ranks = Ranks()
    assert late_of(ranks.beat(AT_ONCE, 4)) == dict.fromkeys(range(4))  # not known yet
    assert late_of(ranks.beat(AT_ONCE)) == dict.fromkeys(range(4), 0)
    assert ranks.beat(LATE, 4).late == []
    (found,) = ranks.beat(LATE).late
    assert (found.rank, found.late_ns) == (1, 30 * MS)
    assert found.since == Onset(HOUR_12 + 6 * SECOND, or_earlier=False)


def test_who_was_late_at_the_first_look_may_have_been_before() -> None:
    (found,) = Ranks().beat(LATE, 5).late
    assert found.since == Onset(HOUR_12 + SECOND, or_earlier=True)


def test_who_was_late_before_it_could_be_compared_may_have_been_before() -> None:
    ranks = Ranks(2)
    ranks.beat((40.0, None))
    (found,) = ranks.beat((40.0, 10.0), 5).late
    assert found.since == Onset(HOUR_12 + 2 * SECOND, or_earlier=True)


def test_a_rank_that_is_late_now_and_then_is_not_accused() -> None:
    ranks = Ranks()
    for _ in range(10):
        ranks.beat(LATE, 4)
        assert ranks.beat(AT_ONCE).late == []


def test_a_rank_stays_late_until_it_usually_is_not() -> None:
    ranks = Ranks()
    since = ranks.beat(LATE, 5).late[0].since
    ranks.beat(AT_ONCE)
    assert ranks.beat(LATE).late[0].since == since
    assert ranks.beat(AT_ONCE, 3).late == []


def test_two_ranks_of_four_may_be_late_and_three_are_what_is_usual() -> None:
    assert [one.rank for one in Ranks().beat((10, 40, 60, 10), 5).late] == [2, 1]
    assert Ranks().beat((10, 40, 40, 40), 5).late == []


@pytest.mark.parametrize(
    ("alone_ms", "late"),
    [
        ((None, None, None, None), dict.fromkeys(range(4))),
        ((10, None, None, None), dict.fromkeys(range(4))),  # nobody to compare it with
        ((10, 40, None, None), {0: 0, 1: 30 * MS, 2: None, 3: None}),
        ((10, 13, 10, 10), dict.fromkeys(range(4), 0)),  # by less than steps differ
    ],
)
def test_what_is_not_known_is_not_said(alone_ms, late) -> None:
    assert late_of(Ranks().beat(alone_ms, 5)) == late


def test_ranks_that_need_others_for_different_things_are_not_compared() -> None:
    standings, last = Standings(), {}
    for number in range(5):
        last = {
            rank: Pulse(rank, number, number + 1, 100 * MS, 1.0, "", alone_ms * MS, need)
            for rank, (alone_ms, need) in enumerate([(10, "collective"), (60, "backward")])
        }
        standing = standings.add(list(last.values()), last)
    assert late_of(standing) == {0: None, 1: None}


def test_an_evaluation_makes_nobody_late() -> None:
    ranks = Ranks()
    ranks.beat(AT_ONCE, 5)
    standing = ranks.beat(LATE, 9, beside="evaluation")
    assert late_of(standing) == dict.fromkeys(range(4), 0)
    assert {one.beside for one in standing.ranks} == {"evaluation"}


def test_steps_that_become_longer_are_noticed_and_that_they_are_short_again() -> None:
    ranks = Ranks()
    assert ranks.beat(AT_ONCE, 10).longer_since is None
    assert ranks.beat(AT_ONCE, 2, step_ms=150).longer_since is None
    found = ranks.beat(AT_ONCE, step_ms=150)
    assert (found.longer_since, found.usual_ns) == (Onset(HOUR_12 + 11 * SECOND, or_earlier=False), 100 * MS)
    assert ranks.beat(AT_ONCE, 2, step_ms=100).longer_since is not None
    assert ranks.beat(AT_ONCE, step_ms=100).longer_since is None


# --- as people see it ------------------------------------------------------------------------------------------------


def shown(standing: JobStanding, height: int = 24, width: int = 100, captures=(), cycles=()) -> list[str]:
    job = Job(Path("mine"), lambda paths, keep_going: None)
    job.standing, job.captures = standing, list(captures)
    lines = job_table(job, cycles, width, height)
    assert len(lines) < height
    assert all(len(line.text) <= width for line in lines)
    return [line.text for line in lines]


def test_ranks_on_a_screen() -> None:
    ranks = Ranks()
    ranks.beat(AT_ONCE, 7)
    row = {"step_ns": 141 * MS, "verdict": "skew-bound", "blamed_rank": 1}
    captures = [OnDemand(Path("mine-step90"), row), OnDemand(Path("mine-step99"), None, "holds no trace")]
    assert shown(ranks.beat(LATE, 5, step_ms=130), captures=captures) == [
        "mine: 4 ranks on 1 host, step 120, 130.0 ms each",
        "steps are longer since 12:00:08, and took 100.0 ms before",
        "  rank  host             step   step ms  alone ms  late by ms  since",
        "     1  node000           120     130.0      40.0        30.0  12:00:08",
        "     0  node000           120     130.0      10.0           0",
        "     2  node000           120     130.0      10.0           0",
        "     3  node000           120     130.0      11.0           0",
        "rank 1 on node000 is late by 30.0 ms since 12:00:08: 40.0 ms until its backward pass, others 10.0 ms",
        "captures",
        "  mine-step90: 141.0 ms a step, skew-bound, others wait for rank 1",
        "  mine-step99: holds no trace",
    ]


def test_a_thousand_ranks_at_a_glance() -> None:
    """A row for each host, the worst unfolded, and the others in one."""
    ranks = Ranks(1024)
    lines = shown(ranks.beat([10.0] * 517 + [40.0] + [10.0] * 506, 5), height=16)
    assert lines[0] == "mine: 1,024 ranks on 128 hosts, step 50, 100.0 ms each"
    assert re.split(r"\s{2,}", lines[2]) == ["node064", "8", "50", "100.0", "10.0", "rank 517 late"]
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        "rank 517", "50", "100.0", "40.0", "+30.0 ms since 12:00:01 or earlier",
    ]  # fmt: skip
    assert lines[4].startswith("node000 ")
    assert re.split(r"\s{2,}", lines[-3]) == [
        "and 119 more hosts", "952", "50", "100.0", "10.0", "nobody there is late",
    ]  # fmt: skip
    assert lines[-2].startswith("rank 517 on node064 is late by 30.0 ms since")


def test_of_hosts_without_a_line_nothing_is_said_that_is_not_known() -> None:
    lines = shown(Ranks(1024).beat([10.0] * 1024, 4), height=16)
    assert re.split(r"\s{2,}", lines[-2]) == ["and 117 more hosts", "936", "40", "100.0", "10.0"]


@pytest.mark.parametrize("height", [1, 8, 24, 300])
def test_many_late_hosts_fit_any_screen_that_has_rows(height) -> None:
    standing = Ranks(1024).beat([10.0 if rank % 16 else 40.0 for rank in range(1024)], 5)
    job = Job(Path("mine"), lambda paths, keep_going: None)
    job.standing = standing
    lines = [line.text for line in job_table(job, [], 100, height)]
    assert len(lines) < max(height, 12)
    assert height > 24 or "among them ranks 0, 16, 32" in lines[-4] or "more host" in "".join(lines)


def test_where_nobody_can_tell_that_is_said() -> None:
    lines = shown(Ranks().beat((None,) * 4, 5))
    assert lines[-1] == ("who is late is not known: no step shows how long a rank works before it needs another rank")
    assert shown(Ranks().beat(AT_ONCE, 2))[-1] == "who is late is known after five pulses of each rank"
    assert shown(Ranks().beat(AT_ONCE, 5))[-1] == "nobody is late for the backward pass"


def test_of_several_late_ranks_each_line_adds_up() -> None:
    text = " ".join(" ".join(shown(Ranks(3).beat((100.0, 80.0, 10.0), 5))).split())
    said = re.search(
        r"rank 0 on node000 is late by ([0-9.]+) ms .*?: ([0-9.]+) ms until .*?, others ([0-9.]+) ms", text
    )
    assert said is not None
    assert said.groups() == ("55.0", "100.0", "45.0")


def test_a_name_from_a_pulse_cannot_move_the_cursor() -> None:
    last = {0: Pulse(0, 1, 1, 1, 1.0, "\x1b[2Jnode")}
    assert "\x1b" not in "".join(shown(Standings().add(list(last.values()), last)))


def test_without_a_terminal_only_what_changes_is_said() -> None:
    ranks, news = Ranks(), JobNews()
    assert news.of(None, 0.0) == []
    assert news.of(ranks.beat(AT_ONCE, 5), 1.0) == ["4 ranks on 1 host, step 50, 100.0 ms each"]
    assert news.of(ranks.beat(AT_ONCE), 2.0) == []
    assert news.of(ranks.beat(LATE, 5), 3.0) == [
        "rank 1 on node000 is late by 30.0 ms since 12:00:07: 40.0 ms until its backward pass, others 10.0 ms"
    ]
    assert news.of(ranks.beat(LATE), 4.0) == []
    assert news.of(ranks.beat(LATE, beside="checkpoint"), 5.0) == ["checkpoint: ranks 0-3"]
    assert news.of(ranks.beat(AT_ONCE, 5), 6.0) == ["no longer late: rank 1"]
    assert news.of(ranks.beat(AT_ONCE), 70.0) == ["4 ranks on 1 host, step 190, 100.0 ms each"]


def test_a_rank_that_leaves_is_said(tmp_path) -> None:
    news, ranks = JobNews(), Ranks()
    news.of(ranks.beat(AT_ONCE, 5), 1.0)
    del ranks.last[2]
    assert news.of(ranks.standings.add([], ranks.last), 2.0) == ["rank 2 left the job"]


@pytest.mark.parametrize("step_ms", [100, 90_000])
def test_a_job_lives_as_long_as_its_steps_may_take(tmp_path, monkeypatch, step_ms) -> None:
    (tmp_path / ".trigger").mkdir()
    trigger.beat(tmp_path, Pulse(0, 5, time.time_ns(), step_ms * MS, 1.0))
    pulses, now_s = Pulses(tmp_path), time.monotonic()
    pulses.look()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 100)
    assert pulses.is_alive == (step_ms == 90_000)


def test_a_rank_that_writes_nothing_more_is_silent(tmp_path, monkeypatch) -> None:
    (tmp_path / ".trigger").mkdir()
    for rank in range(2):
        trigger.beat(tmp_path, Pulse(rank, 5, time.time_ns(), 100 * MS, 1.0))
    pulses, now_s = Pulses(tmp_path), time.monotonic()
    pulses.look()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 30)
    trigger.beat(tmp_path, Pulse(0, 9, time.time_ns(), 100 * MS, 1.0))
    assert [pulse.rank for pulse in pulses.look()] == [0]
    assert pulses.silent_s(pulses.last[0]) is None
    assert pulses.silent_s(pulses.last[1]) == pytest.approx(30, abs=1)


# --- for Prometheus --------------------------------------------------------------------------------------------------

_SAMPLE = re.compile(r'[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?[0-9.e+-]+')


def job_of(standing: JobStanding, name: str = "mine") -> Job:
    job = Job(Path(name), lambda paths, keep_going: None)
    job.standing, job.has_ranks = standing, True
    return job


def test_metrics_in_the_format_of_prometheus() -> None:
    cycles = [{"cycle": 3, "step_ns": 141 * MS, "exposed_wait_frac": 0.25, "blamed_rank": 1}]
    text = exposition(job_of(Ranks(2).beat((10.0, None), 5), 'a "b"\\'), cycles)
    lines = text.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert text.endswith("\n")
    assert all(_SAMPLE.fullmatch(line) for line in samples)
    declared = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    assert {line.partition("{")[0] for line in samples} <= set(declared)
    run = r'run="a \"b\"\\",host="node000"'
    assert f'commtrace_steps_total{{{run},rank="1"}} 50' in samples
    assert f'commtrace_alone_seconds{{{run},rank="0"}} 0.01' in samples
    assert not [line for line in samples if "late_seconds" in line]  # what is not known is left out
    assert r'commtrace_capture_blamed_rank{run="a \"b\"\\",capture="cycle 3"} 1' in samples


def test_metrics_are_served_on_the_loopback_and_to_no_page_of_another_site() -> None:
    server = MetricsServer(0)
    try:
        server.update(job_of(Ranks().beat(LATE, 5)), [])
        assert server.server_address[0] == "127.0.0.1"
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urlopen(url) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b'commtrace_late_seconds{run="mine",host="node000",rank="1"} 0.03\n' in answer.read()
        with pytest.raises(HTTPError, match="403"):
            urlopen(Request(url, headers={"Host": f"evil.example:{server.server_port}"}))
        with pytest.raises(HTTPError, match="404"):
            urlopen(url.replace("metrics", "else"))
        with pytest.raises(CannotServe, match=r"give another --prometheus"):
            MetricsServer(server.server_port)
        server.update(job_of(Ranks().beat(LATE, 5), "run\udcff"), [])
        with urlopen(url) as answer:
            assert b'{run="run\\udcff",host' in answer.read()
        gone = job_of(Ranks().beat(LATE, 5))
        gone.has_ranks = False
        server.update(gone, [])
        with urlopen(url) as answer:
            assert b"rank=" not in answer.read()
    finally:
        server.end()


# --- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_makes_room_for_what_is_written_and_stays_at_the_end(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    ranks, view = Ranks(), JobView()
    job = job_of(ranks.beat(LATE, 5))
    view.show(job, [])
    with view.aside():
        terminal.write("a note\n")
    job.standing = ranks.beat(LATE)
    view.show(job, [])
    view.end()
    view.end()
    rows = Screen().shown(terminal.getvalue())
    assert rows[0] == "a note"
    assert rows[1] == "mine: 4 ranks on 1 host, step 60, 100.0 ms each"
    assert rows[-2].startswith("rank 1 on node000 is late by 30.0 ms")
    assert len(rows) == 9
    assert "\x1b[?25l" not in terminal.getvalue()  # a signal that ends the watch would leave the cursor hidden


class Screen:
    """What a terminal shows after some output: lines, and the two sequences that move in them."""

    _PARTS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])")

    def shown(self, output: str) -> list[str]:
        rows, row, column = [""], 0, 0
        for number, action, character in self._PARTS.findall(output):
            if action == "A":
                row -= int(number or 1)
            elif action == "K":
                rows[row] = "" if number == "2" else rows[row][:column]
            elif character == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif character == "\r":
                column = 0
            elif character:
                rows[row] = rows[row][:column].ljust(column) + character + rows[row][column + 1 :]
                column += 1
        while rows and not rows[-1].strip():
            rows.pop()
        return [each.rstrip() for each in rows]
