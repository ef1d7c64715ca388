"""Captures that are analysed where they end, on ranks that share a file system and on ranks that do not."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from capturing import SCRIPTS, environment, leftovers, metas, python, torchrun

import commtrace
from commtrace.analysis.catalog import CATALOG

pytestmark = pytest.mark.slow

Ended = list[tuple[int, str, str]]
KEPT = {"trace": [".pt.trace.json.gz", ".pt.trace.ctrace"], "recording": [".pt.trace.ctrace"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_launcher(folder: Path, ranks: int, arguments: Sequence[object]) -> Ended:
    """`python ARGUMENTS` as ranks on nodes that share nothing but the network, each in a folder of its own."""
    port, found = str(free_port()), []
    with ExitStack() as running:
        for rank in range(ranks):
            own = folder / f"node{rank}"
            own.mkdir()
            place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_PORT": port}
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=own,
                env=environment() | place | {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.callback(process.kill)
            found.append(running.enter_context(process))
        ended = [(process.communicate(timeout=240), process.returncode) for process in found]
    return [(code, out, err) for (out, err), code in ended]


def files(folder: Path, *endings: str) -> list[str]:
    return sorted(path.name.partition("_")[2] for path in folder.iterdir() if path.name.endswith(endings))


@pytest.mark.parametrize("keep", ["trace"])
def test_nodes_that_share_nothing_one_killed_before_the_end(keep, tmp_path) -> None:
    ended = without_launcher(tmp_path, 4, [SCRIPTS / "verdict.py", "traces", keep, 7, 2])
    assert [code for code, _, _ in ended] == [1, 1, -9, 1], "as without us: a lost peer is an error of the script"
    run = tmp_path / "node0" / "traces" / "run"
    said = ended[0][2]
    assert "rank 2 is missing: no word came" in said
    assert "run: 3 ranks of 4" in said
    assert ended[0][1] == ""
    assert (run / "summary.txt").read_text() in said
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert files(run, ".ctrace") == [f"{rank}.0000.pt.trace.ctrace" for rank in (0, 1, 3)]
    assert files(run, ".meta.json") == [f"{rank}.meta.json" for rank in (0, 1, 3)]
    assert files(run, ".json.gz") == (["0.0000.pt.trace.json.gz"] if keep == "trace" else [])
    assert leftovers(run) == []
    for rank in (1, 2, 3):
        own = tmp_path / f"node{rank}" / "traces" / "run"
        assert not (own / "run.json").exists()
        found = {name.partition(".0000")[2] for name in files(own, ".gz", ".ctrace")}
        assert ".pt.trace.json.gz" in found if rank == 2 else found == {*KEPT[keep]}, "who is killed removes nothing"
    for rank in (0, 1, 3):
        assert all((run / name).is_file() for name in metas(run)[rank]["traces"])
        assert metas(tmp_path / f"node{rank}" / "traces" / "run")[rank]["hand_over_reason"] is None
    assert set(commtrace.analyse(run).ranks["rank"]) == {0, 1, 3}


def test_nodes_that_share_nothing_end_with_one_complete_run(tmp_path) -> None:
    """Though the process group is gone before the capture ends, and rank 0 itself has the store."""
    ended = without_launcher(tmp_path, 2, [SCRIPTS / "verdict.py", "traces", "recording"])
    assert [(code, out) for code, out, _ in ended] == [(0, "rank 0 ends\n"), (0, "rank 1 ends\n")]
    run = tmp_path / "node0" / "traces" / "run"
    assert "run: 2 ranks on " in ended[0][2]
    assert "missing" not in ended[0][2]
    assert ended[1][2] == ""
    assert sorted(path.name.rpartition("_")[2] for path in run.iterdir()) == [
        *("0.0000.pt.trace.ctrace", "0.meta.json", "1.0000.pt.trace.ctrace", "1.meta.json"),
        *("report.html", "run.json", "scalars.json", "summary.txt"),
    ]
    name = metas(run)[1]["traces"][0]
    assert (run / name).read_bytes() == (tmp_path / "node1" / "traces" / "run" / name).read_bytes()


def test_rank_0_is_the_one_that_is_killed(tmp_path) -> None:
    ended = without_launcher(tmp_path, 3, [SCRIPTS / "verdict.py", "traces", "both", 7, 0])
    assert [code for code, _, _ in ended] == [-9, 1, 1]
    for rank in (1, 2):
        own = tmp_path / f"node{rank}" / "traces" / "run"
        assert files(own, ".gz", ".ctrace") == [f"{rank}.0000.pt.trace.{kind}" for kind in ("ctrace", "json.gz")]
        meta = metas(own)[rank]
        assert meta["complete"]
        assert meta["hand_over_reason"]
        assert "Traceback" not in ended[rank][2].partition("RuntimeError")[0].partition("Traceback")[2]


def test_ranks_that_share_a_folder_send_nothing_and_the_script_is_not_disturbed(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "verdict.py", tmp_path, "recording")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 ends", "rank 1 ends"]
    assert "run: 2 ranks on " in done.stderr
    assert "missing" not in done.stderr
    assert files(tmp_path / "run", ".gz", ".ctrace") == [f"{rank}.0000.pt.trace.ctrace" for rank in (0, 1)]
    for rank, meta in metas(tmp_path / "run").items():
        assert (meta["keep"], meta["packing_reason"], meta["hand_over_reason"]) == ("recording", None, None)
        assert [name.partition("_")[2] for name in meta["traces"]] == [f"{rank}.0000.pt.trace.ctrace"]


def test_our_launcher_ends_ranks_whose_peer_died_and_they_are_analysed_first(tmp_path) -> None:
    script = [SCRIPTS / "users" / "ddp.py", "killed"]
    done = python(
        "-m",
        "commtrace",
        "run",
        "--wait",
        2,
        "--active",
        3,
        "--workers",
        3,
        "--analyse",
        "--out",
        tmp_path,
        "--run-name",
        "run",
        *script,
    )
    assert done.returncode == 137, done.stderr
    # The launcher ends the others as well, sometimes before they have said that their captures are whole.
    assert re.search("(rank 1 is|ranks (0-1|1-2|0-2) are) here only in part: no word came", done.stderr), done.stderr
    assert "run: 3 ranks on " in done.stderr, "the trace of rank 1 was there before that was killed"
    assert len(metas(tmp_path / "run")) == 3


def test_train_shows_the_summary_where_tables_are_expected(tmp_path) -> None:
    options = ["--workers", 2, "--device", "cpu", "--batch-size", 4, "--image-size", 16, "--repeat", 2]
    keep = ["--keep", "both", "--analyse", "--out", tmp_path, "--run-name", "mine"]
    done = python("-m", "commtrace", "train", *options, *keep)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "mine"
    assert done.stdout.startswith((run / "summary.txt").read_text())
    assert len(files(run, ".gz")) == len(files(run, ".ctrace")) == 4
    assert metas(run)[1]["keep"] == "both"
    same_tables(run, tmp_path)


def same_tables(run: Path, tmp_path: Path) -> None:
    """Every table is the same, to the byte, from the traces alone and from the recordings alone."""
    parts = {".json.gz": tmp_path / "traces" / "mine", ".ctrace": tmp_path / "recordings" / "mine"}
    for ending, folder in parts.items():
        folder.mkdir(parents=True)
        for path in run.iterdir():
            if path.name.endswith((".meta.json", ending)) or path.name == "run.json":
                shutil.copy(path, folder)
    first, second = (commtrace.analyse(folder, details=True, workers=1) for folder in parts.values())
    compared = 0
    for name in (name for name in CATALOG if hasattr(type(first), name)):
        assert getattr(first, name).to_csv() == getattr(second, name).to_csv(), name
        compared += 1
    assert compared > 10
