"""The tab `commtrace` of a real TensorBoard: the list of runs below the log directory, and their reports."""

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSER, found_by, looked_at_address, needs_browser
from report_pages import ReadPage, assert_self_contained, hash_of
from tensorboards import PATIENCE_S, content, tensorboard

import commtrace.analysis.tensorboard
import commtrace.analysis.tensorboard.listing as listing_module
from commtrace import analyse
from commtrace.analysis.show.first_screen import COMMUNICATION, first_screen
from commtrace.analysis.tensorboard.listing import NotListed, RunList
from commtrace.analysis.tensorboard.runs import runs_below, stamp_of

ROOT = Path(__file__).resolve().parents[1]
needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
TAB = "data/plugin/commtrace"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one in a folder of its own with an odd name, one that cannot be read, and a folder without traces."""
    folder = tmp_path_factory.mktemp("traces")
    shutil.copytree(ROOT / "tests/data/nccl-straggler", folder / "one")
    shutil.copytree(ROOT / "tests/data/nccl-rooted", folder / "day & night/<b>two")
    (folder / "broken").mkdir()
    (folder / "broken/node_0.0001.pt.trace.json").write_text('{"traceEvents": [{"ph": ', encoding="utf-8")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def address(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where TensorBoard listens, with the plugin as an installed package declares it."""
    installed = tmp_path_factory.mktemp("site")
    info = installed / "commtrace-0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: commtrace\nVersion: {commtrace.__version__}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    entry = "[tensorboard_plugins]\ncommtrace = commtrace.analysis.tensorboard.plugin:CommtracePlugin\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    path = os.pathsep.join([str(installed), str(ROOT)])
    with tensorboard(logdir, {"PYTHONPATH": path}) as found:
        yield found
    assert "In 3.0, this warning will become an error" not in "".join(found.said)


def fetched(url: str) -> tuple[int, dict[str, str], str]:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as err:
        return err.code, dict(err.headers), err.read().decode()


def report_of(address: str, run: str) -> tuple[int, dict[str, str], str]:
    return fetched(f"{address}{TAB}/report?{urllib.parse.urlencode({'run': run})}")


@pytest.mark.slow
@needs_tensorboard
def test_the_tab_is_there(address: str) -> None:
    listed = json.loads(fetched(f"{address}data/plugins_listing")[2])
    assert listed["commtrace"]["enabled"]
    assert listed["commtrace"]["tab_name"] == "commtrace"


def listed(address: str) -> dict[str, dict[str, Any]]:
    """The rows of the list by run, once all are read."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        rows = content(f"{address}{TAB}/runs")
        if all(row["state"] in ("ready", "failed") for row in rows):
            return {row["run"]: row for row in rows}
        time.sleep(0.5)
    raise AssertionError(f"runs were never read: {rows}")


@pytest.mark.slow
@needs_tensorboard
def test_every_run_is_listed_with_what_its_first_screen_says(address: str, logdir: Path) -> None:
    rows = listed(address)
    assert list(rows) == ["broken", "one", "day & night/<b>two"]
    screen = first_screen(analyse(logdir / "one", details=True))
    row = rows["one"]
    assert (row["verdict"], row["headline"]) == (screen.verdict, screen.headline)
    parts = {part.column: part.ns for part in screen.parts}
    assert row["step_ns"] == pytest.approx(sum(parts.values()))
    assert row["exposed_comm_ns"] == pytest.approx(sum(parts[column] for column in COMMUNICATION))
    assert (row["remedy"], row["gain_ns"]) == (screen.remedies[0].what, screen.remedies[0].gain_ns)
    assert rows["broken"]["state"] == "failed"
    assert "node_0.0001.pt.trace.json" in rows["broken"]["why"]


@pytest.mark.slow
@needs_tensorboard
def test_what_the_tab_is_made_of_has_the_headers_that_tensorboard_wants(address: str) -> None:
    for place, kind in (("index.js", "text/javascript"), ("style.css", "text/css"), ("runs", "application/json")):
        code, headers, _ = fetched(f"{address}{TAB}/{place}")
        assert (code, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.slow
@needs_tensorboard
def test_the_report_is_the_one_of_the_command(address: str, logdir: Path) -> None:
    code, headers, html = report_of(address, "one")
    assert code == 200
    assert html == analyse(logdir / "one", details=True).report().html
    policy = assert_self_contained(html).policy
    assert headers["Content-Security-Policy"] == f"{policy}; frame-ancestors 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert report_of(address, "day & night/<b>two")[0] == 200


@pytest.mark.slow
@needs_tensorboard
def test_what_cannot_be_read_says_why(address: str) -> None:
    code, headers, html = report_of(address, "broken")
    assert code == 422
    assert "node_0.0001.pt.trace.json" in "".join(ReadPage(html).texts)
    assert headers["Content-Security-Policy"] == "default-src 'none'"


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.parametrize("run", ["..", "../..", "/etc", "empty", "", "one/../one", "\x00"])
def test_only_runs_below_the_log_directory_are_shown(address: str, run: str) -> None:
    assert report_of(address, run)[0] == 404


@pytest.mark.slow
@needs_tensorboard
def test_twenty_requests_at_once_have_each_report_made_once_and_two_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commtrace.analysis.tensorboard import plugin

    made: list[str] = []
    at_once: list[int] = []
    lock = threading.Lock()

    def slowly(run: Path) -> bytes:
        with lock:
            made.append(run.name)
            at_once.append(len(made) - len(done))
        time.sleep(0.1)
        with lock:
            done.append(run.name)
        if run.name == "4":
            raise plugin.ReportFailed("it is damaged")
        return run.name.encode()

    done: list[str] = []
    monkeypatch.setattr(plugin, "_made", slowly)
    runs = [tmp_path / str(number) for number in range(5)]
    for run in runs:
        run.mkdir()
    reports = plugin.Reports()
    with ThreadPoolExecutor(20) as threads:
        pages = [threads.submit(reports.page, run) for run in runs * 4]
    assert [page.result() for page in pages if page.exception() is None] == [b"0", b"1", b"2", b"3"] * 4
    assert {str(page.exception()) for page in pages if page.exception()} == {"it is damaged"}
    assert sorted(made) == ["0", "1", "2", "3", "4"]
    assert max(at_once) == 2


@needs_tensorboard
@pytest.mark.parametrize("limits", [{"most_asked_for": 2}, {"patience_s": 0.01}])
def test_who_asks_for_too_much_is_told_to_come_back(
    limits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commtrace.analysis.tensorboard import plugin

    asked, go_on = threading.Semaphore(0), threading.Event()

    def slowly(run: Path) -> bytes:
        asked.release()
        go_on.wait(30)
        return b"page"

    monkeypatch.setattr(plugin, "_made", slowly)
    runs = [tmp_path / str(number) for number in range(3)]
    for run in runs:
        run.mkdir()
    reports = plugin.Reports(**limits)
    with ThreadPoolExecutor(2) as threads:
        pages = [threads.submit(reports.page, run) for run in runs[:2]]
        for _ in pages:
            asked.acquire(timeout=30)
        with pytest.raises(plugin.Busy):
            reports.page(runs[2])
        go_on.set()
    assert [page.result() for page in pages] == [b"page", b"page"]
    assert reports.page(runs[2]) == b"page"


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome: apt-get install chromium")
def test_a_browser_shows_it(address: str, tmp_path: Path) -> None:
    seen = looked_at_address(f"{address}#commtrace", tmp_path)
    assert all(asked.startswith(address) for asked in seen.addresses)
    assert any(f"{TAB}/index.js" in asked for asked in seen.addresses)
    assert any(f"{TAB}/style.css" in asked for asked in seen.addresses)
    assert any(f"{TAB}/runs" in asked for asked in seen.addresses)


# What a click does, in a page of the test that stands for TensorBoard's


ROWS = [
    {"run": "slow", "state": "ready", "verdict": "skew-bound", "headline": "Rank 1 is late", "step_ns": 4.2e7,
     "exposed_comm_ns": 8e6, "exposed_comm_frac": 0.19, "remedy": "Rank 1", "gain_ns": 7_000_000, "gain_frac": 0.17},
    {"run": "fast <img src=x onerror=alert(1)>", "state": "ready", "verdict": "hidden", "headline": "<b>Hidden</b>",
     "step_ns": 5e6, "exposed_comm_ns": 1e5, "exposed_comm_frac": 0.02, "remedy": None, "gain_ns": None,
     "gain_frac": None},
    {"run": "now", "state": "reading"},
    {"run": "broken", "state": "failed", "why": "ends in the middle"},
]  # fmt: skip
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' '{}'"


def in_the_tab(folder: Path, code: str) -> object:
    """What `code`, which may wait, returns in a tab that lists ROWS, under a policy as that of TensorBoard."""
    assets = Path(commtrace.analysis.tensorboard.__file__).with_name("assets")
    script = (
        'import("./index.js").then(async (tab) => { await tab.render();'
        f"document.title = JSON.stringify(await (async () => {{ {code} }})()); }});"
    )
    page = f'<!doctype html><head><base href="plugin/commtrace/"></head><script type="module">{script}</script>'
    answers = {
        "/data/entry.html": ("text/html", page),
        "/data/plugin/commtrace/index.js": ("text/javascript", (assets / "index.js").read_text(encoding="utf-8")),
        "/data/plugin/commtrace/style.css": ("text/css", (assets / "style.css").read_text(encoding="utf-8")),
        "/data/plugin/commtrace/runs": ("application/json", json.dumps(ROWS)),
        "/data/plugin/commtrace/report": ("text/html", "<p>a report</p>"),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, text = answers.get(self.path.partition("?")[0], ("text/plain", ""))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", POLICY.format(hash_of(script)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            seen = looked_at_address(f"http://127.0.0.1:{server.server_port}/data/entry.html", folder)
        finally:
            server.shutdown()
    assert seen.console == []
    return found_by(seen)


@pytest.mark.slow
@needs_browser
def test_the_list_fills_sorts_and_shows_names_as_text(tmp_path: Path) -> None:
    code = """
      const runs = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent);
      const head = [...document.querySelectorAll("thead th")].find((th) => th.textContent.startsWith("Step"));
      const first = runs(); head.firstChild.click(); const down = runs(), sort = head.getAttribute("aria-sort");
      head.firstChild.click();
      return [first, down, sort, runs(), head.getAttribute("aria-sort"), document.querySelectorAll("img, td b").length,
              [...document.querySelectorAll("tbody tr")].find((row) => row.textContent.startsWith("slow")).innerText,
              document.querySelector("[role=status]").textContent,
              [...document.querySelectorAll(".says")].map((cell) => cell.textContent)];
    """
    first, down, sort, up, sort_up, smuggled, slow, state, says = in_the_tab(tmp_path, code)  # type: ignore[misc]
    assert first == [row["run"] for row in ROWS]
    assert down == first
    assert up == [first[1], first[0], *first[2:]]
    assert (sort, sort_up) == ("descending", "ascending")
    assert smuggled == 0
    assert " ".join(slow.split()) == "slow skew-bound Rank 1 is late 42.0 8.0 19% \u22127.0 17%"
    assert state == "3 of 4 runs read"
    assert set(says) == {"Rank 1 is late", "<b>Hidden</b>", "reading ...", "ends in the middle"}


@pytest.mark.slow
@needs_browser
def test_a_click_opens_a_report_and_two_ticks_open_two(tmp_path: Path) -> None:
    code = """
      const turned = () => new Promise((done) => addEventListener("hashchange", () => setTimeout(done), { once: true }));
      const frames = () => [...document.querySelectorAll("iframe")].map((frame) => new URL(frame.src).searchParams.get("run"));
      const list = document.querySelector(".list"), [back] = document.querySelectorAll("header:last-of-type button");
      const link = document.querySelectorAll("tbody a")[1]; link.focus();
      let turn = turned(); link.click(); await turn; const one = [frames(), list.hidden, document.activeElement === back];
      turn = turned(); back.click(); await turn; const none = [frames(), list.hidden, document.activeElement === link];
      const boxes = [...document.querySelectorAll("input")], beside = document.querySelector("header button");
      boxes[3].click(); const early = beside.disabled; boxes[1].click(); boxes[0].click();
      const ticked = boxes.map((box) => box.checked);
      turn = turned(); beside.click(); await turn; return [one, none, early, ticked, frames()];
    """  # noqa: E501
    one, none, early, ticked, two = in_the_tab(tmp_path, code)  # type: ignore[misc]
    assert one == [[ROWS[1]["run"]], True, True]
    assert none == [[], False, True]
    assert early
    assert ticked == [True, True, False, False]
    assert two == [ROWS[1]["run"], ROWS[0]["run"]]


# What the list keeps, and when it reads


def runs_in(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "x.pt.trace.json").write_text("1", encoding="utf-8")
    return [folder / name for name in names]


def states(listing: RunList) -> list[str]:
    return [row["state"] for row in listing.rows()]


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_asking_does_not_wait_and_two_runs_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "_FOUND_FOR_S", -1)
    go_on = threading.Event()

    def slowly(run: Path) -> dict[str, Any]:
        go_on.wait(30)
        if run.name == "c":
            raise NotListed("it is damaged")
        return {"headline": run.name}

    runs_in(tmp_path, *"abcd")
    listing = RunList(tmp_path, slowly)
    listing.rows()
    until(lambda: states(listing) == ["reading", "reading", "waiting", "waiting"])
    go_on.set()
    until(lambda: states(listing) == ["ready", "ready", "failed", "ready"])
    assert [row.get("headline", row.get("why")) for row in listing.rows()] == ["a", "b", "it is damaged", "d"]


def test_a_row_is_kept_until_a_trace_changes_and_shown_while_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "_FOUND_FOR_S", -1)
    read: list[str] = []
    go_on = threading.Event()
    go_on.set()

    def noted(run: Path) -> dict[str, Any]:
        go_on.wait(30)
        read.append(run.name)
        return {"headline": str(len(read))}

    a, b = runs_in(tmp_path, "a", "b")
    listing = RunList(tmp_path, noted)
    until(lambda: states(listing) == ["ready", "ready"])
    listing.rows()
    assert sorted(read) == ["a", "b"]
    go_on.clear()
    (a / "x.pt.trace.json").write_text("22", encoding="utf-8")
    before = listing.rows()[0]
    assert before["state"] != "ready"
    assert before["headline"] in ("1", "2")
    go_on.set()
    until(lambda: states(listing) == ["ready", "ready"])
    assert listing.rows()[0]["headline"] == "3"
    shutil.rmtree(b)
    assert [row["run"] for row in listing.rows()] == ["a"]


def test_nothing_more_is_read_once_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "_LOOKED_AT_S", -1)
    listing = RunList(tmp_path, lambda _: {})
    runs_in(tmp_path, "a")
    listing.rows()
    time.sleep(0.1)
    assert states(listing) == ["waiting"]


# Which folders are runs


def test_folders_are_searched_within_limits(tmp_path: Path) -> None:
    deep = tmp_path / "1/2/3/4/5"
    for folder in (tmp_path / "b", tmp_path / "a", deep, deep / "6", tmp_path / ".hidden"):
        folder.mkdir(parents=True)
        (folder / "x.pt.trace.json.gz").touch()
    (tmp_path / "b" / "x.pt.trace.json.gz").rename(tmp_path / "b" / "x.pt.trace.ctrace")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = [str(run.relative_to(tmp_path)) for run in runs_below(tmp_path)]
    assert found == ["a", "b", "1/2/3/4/5"]
    assert list(runs_below(tmp_path / "nowhere")) == []


def test_a_trace_that_is_a_link_in_a_circle_is_none(tmp_path: Path) -> None:
    (tmp_path / "a_0.pt.trace.json").symlink_to("a_0.pt.trace.json")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b_0.pt.trace.json").touch()
    assert list(runs_below(tmp_path)) == [tmp_path / "b"]


def test_a_run_has_another_stamp_once_a_trace_changes(tmp_path: Path) -> None:
    trace = tmp_path / "x.pt.trace.json"
    trace.write_text("1", encoding="utf-8")
    before = stamp_of(tmp_path)
    assert stamp_of(tmp_path) == before
    trace.write_text("22", encoding="utf-8")
    assert stamp_of(tmp_path) != before
