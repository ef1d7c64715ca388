"""Questions on runs of known truth: a client gets each answer in three calls, and what cannot be known is said.

The truth is computed from what was drawn, by this file alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import Asked
from builders import MS, Collective, traces_of
from hanging_jobs import broken, data_parallel, write_job

STEPS, MOST_CALLS = 6, 3


@dataclass(frozen=True)
class Drawn:
    """Ranks that compute `compute` ns in each step, one of them `longer`, before an all_reduce of `elems` float32."""

    ranks: int
    late: int
    compute: int
    longer: int
    transfer: int
    elems: int

    @classmethod
    def of(cls, seed: int) -> Drawn:
        drawn = random.Random(seed)
        ranks = drawn.choice([2, 3, 4, 8])
        times = [drawn.randrange(low, high) * 1000 for low, high in ((8_000, 20_000), (3_000, 9_000), (2_000, 6_000))]
        return cls(ranks, drawn.randrange(ranks), *times, elems=drawn.randrange(10**6, 10**8))

    @property
    def step_ns(self) -> int:
        return self.compute + self.longer + self.transfer

    @property
    def busbw_gb_per_s(self) -> float:
        return 4 * self.elems * 2 * (self.ranks - 1) / self.ranks / self.transfer

    def write(self, folder: Path) -> Path:
        begin = [k * self.step_ns for k in range(STEPS)]
        ends = [self.compute + self.longer * (rank == self.late) for rank in range(self.ranks)]
        truth = [Collective([at + end for end in ends], self.transfer, elems=self.elems) for at in begin]
        for trace, end in zip(traces_of(self.ranks, truth), ends, strict=True):
            for k, at in enumerate(begin):
                trace.step(k, at, at + self.step_ns).kernel("gemm", at, end)
            trace.write(folder / "run")
        return folder


def _open(asked: Asked) -> Any:
    return asked.one("open_run", run="run")


def _part(asked: Asked, column: str) -> Any:
    return next(part["ns"] for part in _open(asked)["parts"] if part["column"] == column)


def _table(asked: Asked, name: str, **how: Any) -> Any:
    return asked.one("table", run="run", name=name, **how)


def _gain(asked: Asked) -> Any:
    late = _open(asked)["late_ranks"][0]["rank"]
    return asked.one("predict", run="run", changes=[{"without_straggler": late}])["rows"][0]["gain_ns"]


def _links(asked: Asked) -> Any:
    return asked.one("predict", run="run", changes=[{"links": 2}])["rows"][0]["gain_ns"]


def _waited_for(asked: Asked) -> Any:
    return _table(asked, "ranks", where=["caused_wait_ns>0"])["total"]


QUESTIONS: dict[str, tuple[Callable[[Asked], Any], Callable[[Drawn], Any]]] = {
    "How long does a step take?": (lambda asked: _open(asked)["step_ns"], lambda run: run.step_ns),
    "Which rank do the others wait for?": (
        lambda asked: _open(asked)["late_ranks"][0]["rank"],
        lambda run: run.late,
    ),
    "For how many ranks does anybody wait?": (_waited_for, lambda run: 1),
    "How much of a step is waiting that nothing hides?": (
        lambda asked: _part(asked, "exposed_wait_ns"),
        lambda run: run.longer * (run.ranks - 1) / run.ranks,
    ),
    "How much of a step moves data, and nothing hides it?": (
        lambda asked: _part(asked, "exposed_transfer_ns"),
        lambda run: run.transfer,
    ),
    "How much of a step does a device compute?": (
        lambda asked: _part(asked, "compute_alone_ns"),
        lambda run: run.compute + run.longer / run.ranks,
    ),
    "How fast is the all_reduce, as nccl-tests counts it?": (
        lambda asked: _table(asked, "bandwidth", columns=["busbw_gb_per_s"])["rows"][0]["busbw_gb_per_s"],
        lambda run: run.busbw_gb_per_s,
    ),
    "How many collectives were there?": (lambda asked: _table(asked, "collectives")["total"], lambda run: STEPS),
    "What would a step gain if that rank were as fast as the others?": (_gain, lambda run: run.longer),
    "What would links that are twice as fast bring, at most?": (_links, lambda run: run.transfer / 2),
}


@pytest.fixture(scope="module", params=range(4))
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Drawn, Asked]:
    run = Drawn.of(request.param)
    return run, Asked(run.write(tmp_path_factory.mktemp("drawn")))


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_run_of_known_truth_shows(drawn: tuple[Drawn, Asked], question: str) -> None:
    run, asked = drawn
    asked.calls = 0
    ask, truth = QUESTIONS[question]
    assert ask(asked) == pytest.approx(truth(run), rel=0.03)
    assert asked.calls <= MOST_CALLS


@pytest.mark.parametrize("seed", range(4))
def test_which_rank_never_came(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    job = broken(data_parallel(drawn.choice([3, 4, 8])), drawn, 1)
    write_job(tmp_path / "dumps", job)
    answer = Asked(tmp_path).one("hang", dumps=["dumps"])
    assert answer["found"] == job.hangs
    named = {int(rank) for row in answer["origins"]["rows"] for rank in row["ranks"].split()}
    assert named >= job.culprits


def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    asked = Asked(Drawn.of(0).write(tmp_path))
    [row] = _table(asked, "mfu", where=["rank=0"])["rows"]
    assert row["mfu_frac"] is None  # no shapes
    hangs = _table(asked, "hangs")
    assert (hangs["rows"], hangs["note"], hangs["cannot_answer"]) == ([], "no collective hangs", [])
    copies = _table(asked, "copies")
    assert (copies["rows"], copies["cannot_answer"]) == ([], ["no device copied or filled memory by itself"])
    assert "cannot answer" in asked.one("predict", run="run", changes=[{"no_data_wait": True, "links": "between=2"}])


@pytest.mark.slow
def test_two_runs_that_differ_by_much_and_two_that_do_not(tmp_path: Path) -> None:
    for name, longer in (("a", 4), ("b", 4), ("c", 12)):
        Drawn(4, 2, 10 * MS, longer * MS, 3 * MS, 10**7).write(tmp_path / name)
    asked = Asked(tmp_path)
    same, other = asked.all([
        ("compare", {"a": ["a/run"], "b": ["b/run"]}), ("compare", {"a": ["a/run"], "b": ["c/run"]})
    ])  # fmt: skip
    assert same["change_frac"] == pytest.approx(0, abs=1e-6)
    assert other["change_frac"] == pytest.approx(8 / 17, rel=0.01)
    assert "rank 2" in other["cause"]
