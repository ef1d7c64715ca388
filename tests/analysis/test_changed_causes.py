"""Two runs of known truth: what costs more in the second, by prices of both, and which kernels do the same work."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import MS, US, Collective, Trace, traces_of
from simulator import simulate
from simulator.ops import Comm, Kernel, Op
from simulator.pipelines import three_d
from simulator.programs import ddp, fsdp, moe, tp
from simulator.world import Injection, Place, Window, World

from commtrace import Analysis, Comparison, analyse
from commtrace.analysis.comparison.candidates import Candidate, Sort
from commtrace.analysis.comparison.causes import step_change
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.prices import Gain

pytestmark = pytest.mark.slow

STEPS = 6
STEP = {"aten::mm": ("gemm", 6.0), "aten::relu": ("relu", 1.0), "aten::add": ("add", 2.0)}
"""Operators of a step, their kernels and how many ms these take; the first is called twice."""


def run(
    folder: Path,
    *,
    times: dict[str, float] | None = None,
    names: dict[str, str] | None = None,
    again: int = 1,
    device: str = "NVIDIA H100 80GB HBM3",
    launched: int = 9,
    more: int = 0,
    library: str = "aten",
    shapes: dict[str, list[int]] | None = None,
) -> Analysis:
    """Steps on one GPU that is always busy: by operator, how many `times` as long, and with other names of kernels.

    `aten::relu` is called `again` and again, and so many `more` kernels of 1 ms each run at the end. Of so many kernels
    of a step the trace shows who `launched` them: operators of this `library`, with inputs of these `shapes`.
    """
    trace = Trace(0, 1, device_names=(device,))
    begin = MS
    for number in range(STEPS):
        end = begin
        for place, operator in enumerate(("aten::mm", *["aten::relu"] * again, "aten::mm", "aten::add")):
            name, ms = STEP[operator]
            dur = round(ms * MS * (times or {}).get(operator, 1.0)) + number * US
            issued = begin + place * 20 * US
            dims = {"Input Dims": [shapes[operator]], "Input type": ["float"]} if shapes and operator in shapes else {}
            trace.event("cpu_op", operator.replace("aten", library), issued - US, 7 * US, **dims)
            trace.kernel((names or {}).get(name, name), end, dur, launch=issued if place < launched else None)
            end += dur
        for place in range(more):
            issued = begin + (place + 10) * 20 * US
            trace.op(f"aten::more{place}", issued - US, 7 * US)
            trace.kernel(f"more_{'abcdefg'[place]}", end, MS, launch=issued)
            end += MS
        trace.step(number, begin - 2 * US, end - 3 * US)
        begin = end
    trace.write(folder)
    return analyse(folder, details=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Comparison]:
    """The plain run, and one with these options. Runs with the same options are one."""
    folder, number = tmp_path_factory.mktemp("runs"), count()
    runs: dict[str, Analysis] = {}

    def of(options: dict[str, Any]) -> Analysis:
        key = repr(options)
        if key not in runs:
            runs[key] = run(folder / str(next(number)), **options)
        return runs[key]

    def compared(plain: dict[str, Any] | None = None, **options: Any) -> Comparison:
        return Comparison((of(plain or {}),), (of(options),))

    return compared


RENAMED = {"gemm": "nvjet_tst_128x8", "relu": "triton_poi_fused_relu_3", "add": "triton_poi_fused_add_0"}


@pytest.mark.slow
def test_kernels_with_other_names_are_the_same_work(made: Any) -> None:
    both = made(names=RENAMED, times={"aten::mm": 1.2})
    assert both.cause == "+2.4 ms: compute, nvjet_tst_128x8 in place of gemm"
    kernels = {row["name"]: row for row in records(both.changed_kernels)}
    assert {name: row["name_a"] for name, row in kernels.items()} == {new: old for old, new in RENAMED.items()}
    assert kernels["nvjet_tst_128x8"]["difference_ns"] == pytest.approx(2.4 * MS, rel=0.01)
    assert kernels["triton_poi_fused_add_0"]["difference_ns"] == pytest.approx(0, abs=10 * US)


def test_names_that_change_places_are_told_apart_by_what_launched_them(made: Any) -> None:
    both = made(names={"gemm": "add", "add": "gemm"}, times={"aten::add": 3.0})
    assert both.cause == "+4.0 ms: compute, gemm in place of add"


@pytest.mark.slow
def test_all_kernels_longer_is_another_device_and_no_kernel(made: Any) -> None:
    slower = dict.fromkeys(STEP, 1.3)
    words = "everything takes 1.30 times as long"
    assert made(times=slower).cause == f"+4.5 ms: {words}: another GPU, other clocks or a throttle"
    assert made({"times": slower}).cause == (
        "-4.5 ms: everything takes 0.77 times as long: another GPU, other clocks or a throttle"
    )
    both = made(times=slower, device="NVIDIA A100-SXM4-80GB")
    assert both.cause == f"+4.5 ms: {words}: NVIDIA A100-SXM4-80GB in place of NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("times", "cause"),
    [
        ({"aten::mm": 1.01}, "compute, gemm"),
        ({"aten::relu": 1.2}, "compute, relu"),
        (dict.fromkeys(STEP, 1.01), "everything takes 1.01 times as long: another GPU, other clocks or a throttle"),
        ({"aten::mm": 1.006, "aten::add": 1.05}, "compute, add (+0.1 ms); compute, gemm (+72 us)"),
    ],
)
def test_a_small_change_that_steps_prove_has_its_cause(made: Any, times: dict[str, float], cause: str) -> None:
    both = made(times=times)
    assert both.decision.beyond_steps
    assert both.change.words == cause


def test_a_change_that_no_candidate_explains_has_the_largest_parts_with_their_amounts(made: Any) -> None:
    both = made({"launched": 1}, times={"aten::mm": 1.01, "aten::relu": 1.1}, launched=1)
    assert both.cause.startswith("+0.2 ms: compute (gemm +0.1 ms, relu +0.1 ms)")


def test_one_kernel_that_takes_most_is_not_everything(made: Any) -> None:
    assert made(times={"aten::mm": 1.3}).cause == "+3.6 ms: compute, gemm"


@pytest.mark.slow
def test_other_vendors_are_compared_by_category(made: Any) -> None:
    names = {"gemm": "Cijk_Alik_Bljk_BBS_BH", "relu": "vectorized_elementwise_kernel", "add": "elementwise_kernel"}
    plain = {"names": names | {"gemm": "ampere_sgemm_128x64"}}
    both = made(plain, names=names, times={"aten::mm": 1.5, "aten::add": 0.2}, device="AMD Instinct MI300X")
    assert both.cause == "+4.4 ms: compute, GEMM (+6.0 ms); compute, elementwise (-1.6 ms)"


def test_a_kernel_that_is_launched_more_often_is_known_by_its_name(made: Any) -> None:
    assert made(again=3).cause == "+2.0 ms: compute, relu"


@pytest.mark.slow
def test_a_slower_kernel_has_the_operator_and_shapes_that_are_slower(made: Any) -> None:
    shapes = {"aten::mm": [4096, 512], "aten::relu": [4096, 2048]}
    both = made({"shapes": shapes}, shapes=shapes, times={"aten::mm": 1.2})
    assert "    mostly aten::mm of 4096x512, float32: +2.4 ms\n" in both.summary()
    larger = made({"shapes": shapes}, shapes={"aten::mm": [8192, 512]}, times={"aten::mm": 1.2})
    assert "    mostly aten::mm of 8192x512, float32, which A does not have: +14.4 ms\n" in larger.summary()
    assert "mostly" not in made(times={"aten::mm": 1.2}).summary()


@pytest.mark.slow
def test_kernels_have_no_shapes_of_operators_that_launch_others(made: Any) -> None:
    plain = {"shapes": {"aten::mm": [4096, 512]}}
    both = made(plain, shapes={"aten::mm": [8192, 512]}, times={"aten::mm": 1.5, "aten::relu": 2.0})
    assert both.operators_behind("compute, relu") == {"aten::relu"}
    lines = both.summary().splitlines()
    below = {line.split("  ")[1]: after for line, after in pairwise(lines) if line.startswith("  compute, ")}
    assert below["compute, gemm"].startswith("    mostly aten::mm of 8192x512")
    assert not below["compute, relu"].startswith("    mostly")


def test_work_of_one_side_only_is_said_to_be_so(made: Any) -> None:
    both = made({"again": 0})
    assert both.cause == "+1.0 ms: compute, relu, which A does not have"
    assert records(both.changed_causes)[0]["what"] == "without relu"


@pytest.mark.slow
def test_all_that_only_one_side_has_is_one_cause(made: Any) -> None:
    assert made(more=3).cause == "+3.0 ms: compute, more_a and 2 more kernels, which A does not have"
    assert made({"more": 3}).cause == "-3.0 ms: compute, more_a and 2 more kernels, which B does not have"


@pytest.mark.slow
def test_programs_that_have_little_in_common_are_compared_as_a_whole(made: Any) -> None:
    both = made(names=RENAMED, library="mine", again=3, times={"aten::mm": 2.0})
    assert both.cause == "+14.0 ms: compute in all (A and B have few kernels in common)"
    # The same program for another vendor is launched by the same operators.
    assert "in common" not in made(names=RENAMED, times={"aten::mm": 2.0}, device="AMD Instinct MI300X").cause


@pytest.mark.slow
def test_links_that_are_slower_are_one_cause_whatever_the_sizes(tmp_path: Path) -> None:
    sides = []
    for name, times in (("a", (4, 6)), ("b", (6, 9))):
        begins = [20 * number * MS for number in range(1, STEPS + 1)]
        truth = [
            Collective((begin + before * MS,) * 2, ms * MS, elems=(place + 1) << 20)
            for begin in begins
            for place, (before, ms) in enumerate(zip((1, 1 + times[0]), times, strict=True))
        ]
        for trace in traces_of(2, truth):
            for number, begin in enumerate(begins):
                trace.step(number, begin - 2 * US, begin + 19 * MS).kernel("gemm", begin, MS, launch=begin - US)
            trace.write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    found = records(Comparison(*sides).changed_causes)
    assert [row["cause"] for row in found if "all_reduce" in row["cause"]] == [
        "all_reduce of 4 MiB and 8 MiB, transfer"
    ]


def test_what_cannot_be_played_has_its_cause_where_the_time_shows(made: Any) -> None:
    both = made({"launched": 1}, times={"aten::mm": 1.2}, launched=1)
    assert both.candidates is None
    assert both.cause == ("+2.4 ms: compute, gemm, by where the time shows: not both runs can be played again")
    with pytest.raises(NothingMeasured, match="not both runs can be played again"):
        _ = both.changed_causes
    assert "What costs more or less" not in both.summary()


# --- several ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Analysis]:
    """A DDP training of two hosts, of which transfers are hidden behind backward."""

    def analysed(seed: int, *injections: Injection, item: bool = False) -> Analysis:
        program = partial(ddp, layers=3, layer_us=300.0, buckets=(9 << 20, 3 << 20), item=item)
        last = 8 if item else 4
        world = World(
            seed, program, hosts=2, gpus=2, steps=last + 2, window=Window(((1, last),)), injections=injections
        )
        folder = tmp_path_factory.mktemp("simulated")
        simulate(world).write(folder)
        return analyse(folder, details=True)

    return analysed


@pytest.mark.slow
def test_a_late_rank_is_the_cause_though_the_transfers_of_others_show_it(simulated: Any) -> None:
    plain, late = simulated(7), simulated(8, Injection("slower", (2,), tuple(range(6)), 300.0, 0.3))
    both = Comparison((plain,), (late,))
    first = records(both.changed_causes)[0]
    assert both.change is not None
    assert both.change.ns == pytest.approx(0.3 * MS, rel=0.2)
    assert both.cause is not None
    assert ": rank 2 computes 0.3 ms per step longer than the others" in both.cause
    assert (first["what"], first["cause"]) == ("rank 2 as fast as the others", both.change.words)
    # One number for it: that of `remedies`, where the run has it.
    gains = dict(zip(late.remedies["what"], late.remedies["gain_ns"], strict=True))
    assert first["b_ns"] == gains["rank 2 as fast as the others"]
    assert first["difference_ns"] == first["b_ns"] - first["a_ns"]
    assert first["difference_low_ns"] <= first["difference_ns"] <= first["difference_high_ns"]
    back = Comparison((late,), (plain,))
    assert back.change is not None
    assert back.change.words.startswith("rank 2 is no longer late: in A, it computes 0.3 ms per step longer")


@pytest.mark.slow
def test_what_neither_run_names_by_itself_shows_in_the_difference(simulated: Any) -> None:
    """A GPU that is slower by 1 % is not late by itself, but it was as fast as the others before."""
    plain, late = simulated(7), simulated(7, Injection("throttled", (2,), tuple(range(6)), 35.0))
    assert late.prices is not None
    assert late.prices.late is None
    found = records(Comparison((plain,), (late,)).changed_causes)
    assert found[0]["what"] == "rank 2 as fast as the others"
    assert 0 < found[0]["difference_ns"] < 0.06 * MS


@pytest.mark.slow
@pytest.mark.parametrize("sides", ["neither", "b"])
def test_communication_is_said_to_be_split_by_one_side_only_if_it_is(tmp_path: Path, sides: str) -> None:
    """Of one rank of two, nothing can tell waiting from transfer."""
    found = []
    for name, elems in (("a", 8 << 20), ("b", 24 << 20)):
        program = partial(ddp, layers=3, buckets=(elems,))
        simulate(World(7, program, 1, 2, 6, window=Window(((1, 4),)))).write(tmp_path / name)
        if name != sides:
            max((tmp_path / name).glob("*.json.gz")).unlink()
        found.append((analyse(tmp_path / name, details=True),))
    expected = {
        "neither": "all_reduce of 96 MiB instead of 32 MiB, waiting or transfer",
        "b": "exposed communication, which only one side can split into waiting and transfer",
    }
    both = Comparison(*found)
    assert both.change is not None
    assert both.change.words == expected[sides]


@pytest.mark.slow
def test_a_wait_more_does_not_cost_what_the_other_side_does_not_gain_without_it(tmp_path: Path) -> None:
    """Where every collective is needed at once, streams wait in place of a CPU: nothing overlaps without it."""
    sides = []
    for name, injections in (("a", ()), ("b", (Injection("block", (0, 1, 2, 3), tuple(range(8)), 130.0, 0.6),))):
        program = partial(tp, layers=4, item=True)
        simulate(World(7, program, 2, 2, 8, window=Window(((1, 6),)), injections=injections)).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    both = Comparison(*sides)
    assert both.change is not None
    assert both.change.words.startswith("waiting for devices costs")
    assert both.change.parts[0].ns == pytest.approx(both.change.ns, rel=0.1)


@pytest.mark.slow
def test_waits_that_late_launches_hide_bound_what_a_pause_costs(tmp_path: Path) -> None:
    """Of parameters that have come meanwhile, nothing shows that a layer waits for them, as the layers after it do."""
    sides, pause = [], Injection("gc", (0, 1, 2, 3), tuple(range(8)), 3500.0, 0.5)
    for name, injections in (("a", ()), ("b", (pause,))):
        program = partial(fsdp, elems=12 << 20, extras=False, item=True)
        simulate(World(7, program, 2, 2, 8, window=Window(((1, 6),)), injections=injections)).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    both = Comparison(*sides)
    assert both.change is not None
    assert both.change.words == "collecting garbage costs 0.9 ms"
    assert both.change.parts[0].ns == pytest.approx(both.change.ns, rel=0.02)


@pytest.mark.slow
def test_steps_that_only_one_side_has_are_left_out_where_they_do_other_work(tmp_path: Path) -> None:
    """Each number has its own share of tokens for each expert: of other steps, ranks would have other work."""

    def on_same_data(place: Place) -> list[Op]:
        return moe(replace(place, seed=17), us=300.0, width=256, item=True)

    sides = []
    pause = Injection("gc", (0, 1, 2, 3), tuple(range(18)), 60.0, 0.0)
    for name, last, injections in (("a", 16, ()), ("b", 8, (pause,))):
        world = World(7, on_same_data, 2, 2, 18, window=Window(((1, last),)), injections=injections)
        simulate(world).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    both = Comparison(*sides)
    assert both.change is not None
    assert both.change.words.startswith("collecting garbage costs")
    assert both.change.parts[0].ns == pytest.approx(both.change.ns, rel=0.2)
    assert both.typical_steps["steps"].nunique() == 1


@pytest.mark.slow
def test_half_of_the_ranks_are_late_whichever_side_they_are_late_on(simulated: Any) -> None:
    """Too little to be late by themselves: of two halves, it is that which takes longer or less than the other did."""
    plain, late = simulated(7), simulated(7, Injection("throttled", (2, 3), tuple(range(6)), 35.0))
    for a, b, sign in ((plain, late, 1), (late, plain, -1)):
        first = records(Comparison((a,), (b,)).changed_causes)[0]
        assert first["what"] == "host node01 as fast as the others"
        assert first["cause"].startswith("host node01 is ")
        assert 0 < sign * first["difference_ns"] < 0.06 * MS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("data", "waiting for batches costs 61 us"),
        ("gc", "collecting garbage costs 50 us"),
        ("alloc", "allocating and freeing memory costs 50 us"),
    ],
)
def test_a_change_of_one_percent_has_its_cause_by_differences_of_the_same_steps(
    simulated: Any, kind: str, cause: str
) -> None:
    """Less than a batch may take, and than either run by itself is worth a price; all CPUs wait for their devices."""
    plain, slower = (
        simulated(7, *extra, item=True) for extra in ((), (Injection(kind, (0, 1, 2, 3), tuple(range(10)), 50.0, 0.0),))
    )
    both = Comparison((plain,), (slower,))
    assert both.change is not None
    assert both.change.words == cause
    first = records(both.changed_causes)[0]
    assert 0.04 * MS < first["difference_low_ns"] < 0.05 * MS < first["difference_high_ns"] < 0.06 * MS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "us", "at", "cause"),
    [
        ("python", 200.0, 0.0, "CPUs take 0.2 ms more before they launch aten::native_layer_norm"),
        ("block", 20.0, 0.7, "waiting for devices costs"),
    ],
)
def test_what_cpus_do_more_at_one_place_is_the_cause(
    simulated: Any, kind: str, us: float, at: float, cause: str
) -> None:
    """Though they wait for their devices in both runs, and transfers are no longer hidden behind what is launched."""
    more = Injection(kind, (0, 1, 2, 3), tuple(range(10)), us, at)
    both = Comparison((simulated(7, item=True),), (simulated(8, more, item=True),))
    assert both.change is not None
    assert both.change.words.startswith(cause)
    assert both.change.parts[0].ns == pytest.approx(both.change.ns, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.03, 1.2])
def test_cpus_that_are_slower_at_everything_are_the_cause(tmp_path: Path, times: float) -> None:
    """Not the data loader alone, nor that they wait for their devices, which makes launches late."""

    def slower(place: Place, *, factor: float) -> list[Op]:
        ops = ddp(place, layers=12, layer_us=20.0, buckets=(1 << 20,), item=True)
        return [replace(op, cpu_us=op.cpu_us * factor) if isinstance(op, (Kernel, Comm)) else op for op in ops]

    sides = []
    for name, factor in (("a", 1.0), ("b", times)):
        world = World(7, partial(slower, factor=factor), 2, 2, 10, window=Window(((1, 8),)))
        simulate(world).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    for one, other, by in ((0, 1, times), (1, 0, 1 / times)):
        both = Comparison(sides[one], sides[other])
        assert both.change is not None
        said = re.match(r"CPUs take (\d\.\d+) times as long for the same launches", both.change.words)
        assert said is not None
        assert float(said[1]) == pytest.approx(by, abs=0.015)
        assert both.change.parts[0].ns == pytest.approx(both.change.ns, rel=0.3)


@pytest.mark.slow
def test_a_kernel_that_is_another_one_in_each_stage_of_a_pipeline_is_found(tmp_path: Path) -> None:
    """Stages launch the same operators in another order: half of the ranks are slower at each of two places."""
    program = partial(three_d, tp=1, pp=2, microbatches=2, layer_us=300.0, elems=1 << 20)
    slower = Injection("slower", (0, 1, 2, 3), tuple(range(6)), 400.0, 0.3)
    sides = []
    for name, injections in (("a", ()), ("b", (slower,))):
        simulate(World(7, program, 2, 2, 6, window=Window(((1, 4),)), injections=injections)).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    both = Comparison(*sides)
    assert both.change is not None
    assert both.change.parts[0].what.endswith(" as fast as in A")
    assert both.change.words.startswith("compute, ")


@pytest.mark.slow
def test_a_stage_whose_kernels_all_take_longer_is_named(tmp_path: Path) -> None:
    """Not every kernel by a part of that: kernels of both stages have the same names."""
    program = partial(three_d, tp=1, pp=2, microbatches=2, layer_us=300.0, elems=1 << 20)
    throttled = Injection("throttled", (2, 3), tuple(range(6)), 200.0)
    sides = []
    for name, injections in (("a", ()), ("b", (throttled,))):
        simulate(World(7, program, 2, 2, 6, window=Window(((1, 4),)), injections=injections)).write(tmp_path / name)
        sides.append((analyse(tmp_path / name, details=True),))
    both = Comparison(*sides)
    assert both.change is not None
    assert "host node01" in both.change.words
    [found] = [row for row in records(both.changed_causes) if row["what"].startswith("every kernel")]
    assert re.match(r"every kernel of host node01 takes 1\.\d\d times as long: ", found["cause"])
    assert found["difference_ns"] == pytest.approx(both.change.ns, rel=0.1)


@pytest.mark.parametrize(
    ("change_ms", "cause_ms", "words"),
    [(60, 106.7, "pauses (+106.7 ms, of which +60.0 ms shows)"), (60, 65, "pauses"), (0.18, 0.22, "pauses (+0.2 ms)")],
)
def test_a_cause_that_the_rest_of_a_step_hides_says_how_much_shows(
    made: Any, change_ms: float, cause_ms: float, words: str
) -> None:
    both = made(times={"aten::mm": 1 + change_ms / 12})
    cost = Gain(cause_ms * MS, cause_ms * MS, cause_ms * MS)
    pauses = Candidate("no pauses", Gain(0, 0, 0), cost, (cost.low_ns, cost.high_ns), "pauses", Sort.bound)
    change = step_change(both.a, both.b, [pauses], [], is_proven=True)
    assert change is not None
    assert change.words == words
