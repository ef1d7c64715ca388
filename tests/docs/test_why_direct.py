"""docs/why-direct.md: its script runs for real with four ranks, one made slow on purpose, and is named.

The figures of the document are those of one run and are not compared; the ones on the run in the repository are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from capturing import ROOT, torchrun
from noise import expect

from commtrace import Analysis, analyse
from commtrace.analysis.core.schema import records

PAGE = (ROOT / "docs" / "why-direct.md").read_text(encoding="utf-8")
SCRIPT, OVERLAPPED = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
[(SLEEP, SLOW_RANK)] = set(re.findall(r"^SLEEP_S, SLOW_RANK = ([\d.]+), (\d+)$", PAGE, re.MULTILINE))
SLEEP_NS, LATE = float(SLEEP) * 1e9, int(SLOW_RANK)


def run_of(text: str, folder: Path) -> Analysis:
    """The tables of one of the document's scripts, run by four processes."""
    pytest.importorskip("torch")
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    done = torchrun(4, script, folder / "run")
    assert done.returncode == 0, done.stderr
    return analyse(folder / "run")


@pytest.fixture(scope="module")
def straggler(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return run_of(SCRIPT, tmp_path_factory.mktemp("why-direct"))


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return run_of(OVERLAPPED, tmp_path_factory.mktemp("overlapped"))


def expect_unless_busy(analysis: Analysis, holds: bool, said: object) -> None:
    """Expect it, unless steps of a rank, which are all alike, differ by a tenth of the sleep."""
    steps_ns = analysis.breakdown_steps.groupby("rank")["window_ns"]
    expect(holds, float(steps_ns.std().max()), 0.1 * SLEEP_NS, said)


def test_every_all_reduce_is_found_on_all_four_ranks(straggler: Analysis) -> None:
    found = straggler.collectives
    assert found["collective"].tolist() == ["all_reduce"] * 6
    assert found["complete"].all()
    assert found["certain"].all()


@pytest.mark.alone
def test_the_others_wait_for_as_long_as_the_slow_rank_sleeps(straggler: Analysis) -> None:
    waits = straggler.participation
    others = waits.loc[waits["rank"] != LATE, "wait_ns"]
    # Two cores for four ranks: medians, and a sleep that is long against what the ranks take from each other.
    wait_ns, own_ns = others.median(), waits.loc[waits["rank"] == LATE, "wait_ns"].median()
    holds = wait_ns == pytest.approx(SLEEP_NS, rel=0.1) and own_ns < 0.1 * SLEEP_NS
    expect_unless_busy(straggler, holds, (wait_ns, own_ns))


@pytest.mark.alone
def test_the_slow_rank_is_named_with_what_it_did(straggler: Analysis) -> None:
    (run,) = records(straggler.verdicts.head(1))
    doing = rf"Rank {LATE} costs .*: it is (mostly )?blocked in Python, outside of any operator,"
    is_said = run["verdict"] == "skew-bound" and re.search(doing, run["because"])
    expect_unless_busy(straggler, bool(is_said), run["because"])
    ranks = straggler.ranks.set_index("rank")
    is_last = ranks["times_last"].idxmax() == ranks["caused_wait_ns"].idxmax() == LATE
    expect_unless_busy(straggler, is_last, ranks)
    late = straggler.lateness[straggler.lateness["rank"] == LATE]
    extra_ns = late["extra_cpu_ns"].median()
    expect_unless_busy(straggler, extra_ns == pytest.approx(SLEEP_NS, rel=0.1), extra_ns)


@pytest.mark.alone
def test_lateness_that_is_carried_over_is_no_new_one(overlapped: Analysis) -> None:
    late = overlapped.lateness[overlapped.lateness["rank"] == LATE]
    bucket = late["collective_id"] % 4
    because = set(late.loc[bucket > 0, "because"].dropna())
    expect_unless_busy(overlapped, because == {"compute"}, because)
    extra_ns = late.loc[bucket > 0, "extra_compute_ns"].groupby(bucket).median()
    expect_unless_busy(overlapped, (extra_ns > 0.5 * SLEEP_NS).all(), extra_ns)
    new = late["new_ns"].groupby(bucket).median()
    expect_unless_busy(overlapped, new[1] > 0.5 * SLEEP_NS > 2 * max(new[2], new[3]), new)
    kernels = late.loc[bucket == 1, "kernel"]
    expect_unless_busy(overlapped, kernels.str.contains("SlowBackward").all(), kernels)


@pytest.mark.alone
def test_the_rank_behind_compute_is_named_with_what_took_longer(overlapped: Analysis) -> None:
    (run,) = records(overlapped.verdicts.head(1))
    doing = (
        rf"Rank {LATE} costs .*: it (computes|is in operators) .* ms per step longer than the others, .*SlowBackward"
    )
    expect_unless_busy(overlapped, re.search(doing, run["because"]) is not None, run["because"])


@pytest.mark.alone
def test_whole_durations_understate_the_bandwidth(straggler: Analysis) -> None:
    (row,) = records(straggler.bandwidth)
    expect_unless_busy(straggler, row["busbw_from_dur_gb_per_s"] < 0.5 * row["busbw_gb_per_s"], row)


def test_the_figures_of_the_run_in_the_repository() -> None:
    section = PAGE.partition("## A run without a culprit")[2]
    folder = ROOT / "traces" / "resnet18-ddp-w2"
    found = analyse(folder)
    rank = records(found.breakdown)[0]
    steps = [step["dur_ns"] / 1e6 for step in json.loads((folder / "vm_0.meta.json").read_text())["steps"][1:]]
    written = [
        f"between {min(steps):.1f} and {max(steps):.1f} ms",
        f"{rank['exposed_comm_ns'] / 2e6:.1f} ms per\n  step",
        f"communicates for {rank['comm_ns'] / 1e6:.1f} ms of its window of {rank['window_ns'] / 1e6:,.1f} ms",
        f"which is {rank['comm_ns'] / rank['window_ns']:.0%}".replace("%", " %"),
        f"{rank['overlap_ns'] / 1e6:.1f} ms ran behind compute",
        f"{rank['exposed_comm_ns'] / 1e6:.1f} ms, or {100 * rank['exposed_comm_frac']:.1f} %, is what it costs",
        f"the verdict is `{found.verdicts['verdict'][0]}`: {found.verdicts['because'][0].split('. ')[0]}.",
    ]
    written += [
        f"| {row['collective']} | {row['size_bytes']:,} | {row['busbw_from_dur_gb_per_s']:.3f} GB/s "
        f"| {row['busbw_gb_per_s']:.3f} GB/s |"
        for row in records(found.bandwidth)
        if row["size_bytes"] > 160
    ]
    assert not [text for text in written if text not in section]


def test_its_links_lead_somewhere() -> None:
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (Path(ROOT, "docs") / target).exists(), target
