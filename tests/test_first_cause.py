"""The verdict, `remedies`, `predict`, `attribution`, `critical-path` and the report have one first cause and gain."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from simulator import simulate
from test_prices_drawn import drawn

from commtrace import analyse, cli
from commtrace.analysis.results.analysis import Analysis

QUICK, SLOW = (3, 13), (5, 25, 45, 58)
"""Of one rank and of all; pipelines; a fault that costs less than transfers."""
REMEDIES = {
    "skew-bound": {"no_straggler", "no_jitter", "no_bubble", "balanced_experts"},
    "link-bound": {"slow_links"},
    "transfer-bound": {"overlap", "twice_links"},
    "copy-bound": {"no_copies"},
    "sync-bound": {"no_syncs"},
    "allocator-bound": {"no_allocations"},
    "input-bound": {"no_data_wait"},
    "launch-bound": {"launch_ahead", "no_gc", "no_long_calls", "no_compilation"},
}
REMEDIES["mixed"] = {name for names in REMEDIES.values() for name in names} - {"no_straggler", "slow_links"}
A_LOSS = 0.05


def check(seeds: Sequence[int], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In these worlds, as far as there is a loss."""
    for seed in seeds:
        simulate(drawn(seed).caused).write(folder / str(seed))
        run = analyse(folder / str(seed), details=True)
        first = run.remedies.iloc[0]
        verdict = run.verdicts["verdict"].iloc[0]
        if verdict == "compute-bound" or first["gain_frac"] < A_LOSS:
            continue
        assert first["remedy"] in REMEDIES[verdict], (seed, verdict)
        assert_one_gain(run, seed)
        for command in ("predict", "table attribution", "table critical-path"):
            assert cli.main([*command.split(), str(folder / str(seed))]) == 0
            said = re.search(r"would gain [0-9.,]+ [mu]s with (.*?)[,;] (?:or|see)", capsys.readouterr().err)
            assert said is not None, (seed, command)
            assert said[1] == first["what"], (seed, command)
        assert_the_same_rank(run, seed)
        if seed in QUICK:
            assert_its_command_plays_it(run, folder / str(seed), capsys)


def assert_one_gain(run: Analysis, seed: int) -> None:
    """Of each change, wherever it stands, in the same order."""
    gains = run.remedies[run.remedies["gain_frac"].fillna(0) >= 0.01]
    predicted = run.predictions.head(len(gains))
    assert gains["what"].tolist() == predicted["scenario"].tolist(), seed
    assert gains["gain_ns"].tolist() == predicted["gain_ns"].tolist(), seed


def assert_its_command_plays_it(run: Analysis, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once: each option is a row."""
    played = run.remedies.dropna(subset="command")
    assert len(played) > 1
    options = [option for command in played["command"] for option in command.split()[1:]]
    capsys.readouterr()
    assert cli.main(["predict", str(folder), "--format", "json", *options]) == 0
    rows = {row["scenario"]: row["gain_ns"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows == dict(zip(played["what"], played["gain_ns"], strict=True))


def assert_the_same_rank(run: Analysis, seed: int) -> None:
    """If one rank is late, it is the one whose jitter costs most."""
    if run.remedies["remedy"].iloc[0] == "no_straggler" and run.prices and run.prices.late:
        ranks = run.attribution[run.attribution["of"] == "rank"]
        assert int(ranks["part"].iloc[0]) in run.prices.late.ranks, seed


@pytest.mark.slow
def test_in_a_few_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(QUICK, tmp_path, capsys)


@pytest.mark.slow
def test_in_more_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(SLOW, tmp_path, capsys)
