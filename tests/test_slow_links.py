"""Links that are slower than others like them: named where there are some, nobody where there are none."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from samples import a_sample
from simulator import Hardware, Window, World, draw, simulate
from simulator.pipelines import three_d
from simulator.programs import ddp, tp_dp
from simulator.world import Program

from commtrace import analyse, cli
from commtrace.analysis.errors import BadScenario, NothingMeasured
from commtrace.analysis.replay.slow_links import slow_groups

PIPELINE = partial(three_d, tp=2, pp=4, batched=False)
CASES: dict[str, tuple[Program, int, int, tuple[int, ...], float, list[str]]] = {
    "a group": (tp_dp, 2, 4, (4, 5, 6, 7), 1 / 3, ["links of ranks 4-7 (node01)"]),
    "by a quarter": (tp_dp, 2, 4, (0, 1, 2, 3), 0.75, ["links of ranks 0-3 (node00)"]),
    "a group over hosts": (tp_dp, 2, 4, (1, 5), 0.5, ["links of ranks 1, 5 (node00, node01)"]),
    "a pair": (partial(three_d, tp=2, pp=2), 2, 4, (2, 3), 0.5, ["links of ranks 2-3 (node00)"]),
    "a host": (partial(three_d, tp=2, pp=2), 2, 4, (4, 5, 6, 7), 0.4, ["links inside node01"]),
    "a pair of hosts": (
        PIPELINE, 4, 2, (2, 3, 4, 5), 0.4,
        ["links between node01 and node02", "links of ranks 2-3 (node01)", "links of ranks 4-5 (node02)"],
    ),
    "the only group": (ddp, 2, 2, (0, 1, 2, 3), 0.3, []),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", a_sample(list(CASES), 4, seed=1))
def test_slow_links_are_named_and_what_they_cost(name: str, tmp_path: Path) -> None:
    """As fast as the others, the run takes as long as it was simulated with equal links."""
    program, hosts, gpus, ranks, part, expected = CASES[name]
    equal = World(2, program, hosts, gpus, steps=6, window=Window(((1, 4),)))
    slow = replace(equal, hardware=Hardware(slow_links=((ranks, part),)))
    for world, folder in ((equal, "equal"), (slow, "slow")):
        simulate(world).write(tmp_path / folder)
    run = analyse(tmp_path / "slow", details=True)
    assert sorted(each.label for each in slow_groups(run.links)) == expected
    assert slow_groups(analyse(tmp_path / "equal").links) == []
    if not expected:
        with pytest.raises(NothingMeasured, match="no links are slower than others like them"):
            run.predict({"links_as_others": "slow"})
        return
    true = analyse(tmp_path / "equal").breakdown_steps["window_ns"].mean()
    [row] = run.predict({"links_as_others": "slow"}).to_dict("records")
    # With faster links, compute beside them would wait for what the slow ones hid: not all of that is known.
    assert row["step_ns"] == pytest.approx(true, rel=0.04)


@pytest.mark.parametrize("seed", a_sample(range(400, 412), 1))
def test_where_links_are_equal_none_is_slow(seed: int, tmp_path: Path) -> None:
    simulate(draw(seed)).write(tmp_path)
    assert slow_groups(analyse(tmp_path).links) == []


@pytest.mark.slow
def test_any_links_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks, a host or a process group; what has nothing like it cannot."""
    hardware = Hardware(slow_links=(((4, 5, 6, 7), 0.5),))
    simulate(World(2, tp_dp, 2, 4, steps=5, hardware=hardware, window=Window(((1, 3),)))).write(tmp_path)
    run = analyse(tmp_path, details=True)
    [group] = set(run.collectives.loc[run.collectives["ranks"] == "4 5 6 7", "process_group"])
    table = run.predict(*({"links_as_others": who} for who in ("4-7", "node01", group, "slow")))
    assert table["step_ns"].nunique() == 1
    assert set(table["scenario"]) == {"links of ranks 4-7 (node01) as fast as others like them"}
    assert set(table["assumes"]) == {"a byte takes as long as among ranks 0 1 2 3"}
    with pytest.raises(BadScenario, match="'node7': no rank or host of this run"):
        run.predict({"links_as_others": "node7"})
    assert cli.main(["predict", "--links-as-others", "0-7", str(tmp_path)]) == 1
    assert "nothing to compare 0-7 with: no other group" in capsys.readouterr().err
