"""The tab `commtrace` of a real TensorBoard: the reports of all runs below the log directory."""

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSER, looked_at_address
from report_pages import ReadPage, assert_self_contained
from tensorboards import tensorboard

from commtrace import analyse
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
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: commtrace\nVersion: 0\n", encoding="utf-8")
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


@needs_tensorboard
def test_the_tab_is_there(address: str) -> None:
    listed = json.loads(fetched(f"{address}data/plugins_listing")[2])
    assert listed["commtrace"]["enabled"]
    assert listed["commtrace"]["tab_name"] == "commtrace"


@needs_tensorboard
def test_every_run_is_listed(address: str) -> None:
    assert json.loads(fetched(f"{address}{TAB}/runs")[2]) == ["broken", "one", "day & night/<b>two"]


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


@needs_tensorboard
def test_what_cannot_be_read_says_why(address: str) -> None:
    code, headers, html = report_of(address, "broken")
    assert code == 422
    assert "node_0.0001.pt.trace.json" in "".join(ReadPage(html).texts)
    assert headers["Content-Security-Policy"] == "default-src 'none'"


@needs_tensorboard
@pytest.mark.parametrize("run", ["..", "../..", "/etc", "empty", "", "one/../one", "\x00"])
def test_only_runs_below_the_log_directory_are_shown(address: str, run: str) -> None:
    assert report_of(address, run)[0] == 404


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


@needs_tensorboard
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome: apt-get install chromium")
def test_a_browser_shows_it(address: str, tmp_path: Path) -> None:
    seen = looked_at_address(f"{address}#commtrace", tmp_path)
    assert all(asked.startswith(address) for asked in seen.addresses)
    assert any(f"{TAB}/index.js" in asked for asked in seen.addresses)
    assert any(f"{TAB}/runs" in asked for asked in seen.addresses)


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
