"""Real traces beside the checkout, against what an independent calculation says of them, to the nanosecond."""

import csv
import io
import random

import pandas as pd
import pytest
from beside_checkout import EXPECTED, TRACES, needs_shared
from builders import US
from default_sizes import default_sizes
from samples import a_sample, with_slow

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.matching.ladder import Evidence, matches_of
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.calls import pending
from commtrace.analysis.tables.clocks import compared_clocks
from commtrace.analysis.tables.collectives import collectives
from commtrace.analysis.tables.participation import split_calls
from commtrace.cli import main

pytestmark = needs_shared

SETS = (
    "ddp-a100-r0of2", "ddp-v100-r1of2", "dlrm-v100-w8", "moe-b200-r0of2", "nanogpt-h100-w8", "rccl-mi300x-r0of8",
    "torchrec-v100-w4", "vllm-b200-r0of8",
)  # fmt: skip
TIMES = ("window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
COUNTS = ("n_compute", "n_comm", "n_memory")


@pytest.fixture(autouse=True)
def without_cache(monkeypatch):
    """Nothing is written beside traces of others, and each test reads them anew."""
    default_sizes(monkeypatch, cache_bytes=1 << 60)


def expected(name: str, traces: str) -> list[dict[str, str]]:
    with (EXPECTED / name).open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["set"] == traces]


def printed(capsys, *arguments: str) -> list[dict[str, str]]:
    assert main([*arguments, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def keyed(rows: list[dict[str, str]], columns: tuple[str, ...]) -> list[tuple[int, ...]]:
    return sorted(tuple(int(row[column]) for column in columns) for row in rows)


def assert_conserved(rows: list[dict[str, str]]) -> None:
    for row in rows:
        parts = sum(int(row[c]) for c in ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"))
        assert parts == int(row["window_ns"])
        if row["exposed_wait_ns"]:
            split = sum(int(row[c]) for c in ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns"))
            assert split == int(row["exposed_comm_ns"])


@pytest.mark.slow_cases("ddp-v100-r1of2", "nanogpt-h100-w8", "dlrm-v100-w8")
@pytest.mark.parametrize("traces", SETS)
def test_breakdown(capsys, traces):
    rows = printed(capsys, "breakdown", "--whole", str(TRACES / traces))
    columns = ("rank", "device", *COUNTS, *TIMES)
    wanted = expected("breakdown.csv", traces)
    assert wanted
    assert keyed(rows, columns) == keyed(wanted, columns)
    assert_conserved(rows)


_STEPS_OF_ENGINES = ("vllm-b200-r0of8", "tracelens-vllm", "tracelens-sglang")


@pytest.mark.slow_cases("torchrec-v100-w4")
@pytest.mark.parametrize("traces", a_sample(SETS, 3))
def test_breakdown_by_step(capsys, traces):
    wanted = expected("breakdown_steps.csv", traces)
    if traces in _STEPS_OF_ENGINES:
        pytest.skip("was computed without the steps of engines, which test_steps_of_engines looks at")
    if not wanted:
        assert main(["breakdown", "--by", "step", str(TRACES / traces)]) == 1
        assert "no activity belongs to a step" in capsys.readouterr().err
        return
    rows = printed(capsys, "breakdown", "--by", "step", str(TRACES / traces))
    # There, a step began with its first activity: idle time before it, in that step of the CPU, was of the step before.
    columns = ("rank", "device", "step", *(name for name in TIMES if name not in ("window_ns", "idle_ns")))
    assert keyed(rows, columns) == keyed(wanted, columns)
    assert_conserved(rows)
    for _, ran in analyse(TRACES / traces).run.activities.groupby("rank"):
        whole = {name: sum(int(row["window_ns"]) for row in each if int(row["rank"]) == ran["rank"].iloc[0])
                 for name, each in (("ours", rows), ("theirs", wanted))}  # fmt: skip
        first = ran[ran["idle_since_ns"].notna()].sort_values("step").head(1)
        is_first = len(first) and first["step"].iloc[0] == ran["step"].min()
        lead = int((first["start_ns"] - first["idle_since_ns"]).iloc[0]) if is_first else 0
        assert whole["ours"] - whole["theirs"] == lead


@pytest.fixture(scope="module")
def dlrm() -> Analysis:
    return analyse(TRACES / "dlrm-v100-w8")


@pytest.mark.slow
def test_collectives_of_dlrm(dlrm):
    with (EXPECTED / "collectives-dlrm-v100-w8.csv").open(encoding="utf-8", newline="") as file:
        wanted = list(csv.DictReader(file))
    found = records(dlrm.collectives)
    start = min(row["first_start_ns"] for row in found)
    names = {"SendRecv": "all_to_all", "AllReduce": "all_reduce"}
    assert [
        (r["collective"], r["ranks"], r["complete"], r["first_start_ns"] - start, r["last_start_ns"] - start,
         r["last_end_ns"] - start, r["last_rank"], r["arrival_skew_ns"], r["end_skew_ns"], r["min_dur_ns"],
         r["last_arrival_to_last_end_ns"])
        for r in found
    ] == [
        (names[w["op"]], w["ranks"], w["complete"] == "True", *(int(w[c]) for c in (
            "first_start_ns", "last_start_ns", "last_end_ns", "last_rank", "arrival_skew_ns", "end_skew_ns",
            "min_dur_ns", "last_arrival_to_last_end_ns")))
        for w in wanted
    ]  # fmt: skip


def test_calls_of_dlrm_have_metadata_and_sizes_from_annotations(dlrm):
    assert dlrm.calls["metadata_from"].value_counts().to_dict() == {"annotation": 64}
    assert dlrm.collectives["collective"].value_counts().to_dict() == {"all_to_all": 5, "all_reduce": 3}
    assert dlrm.collectives["size_bytes"].notna().all()
    assert dlrm.collectives["busbw_gb_per_s"].notna().all()
    assert dlrm.participation["wait_ns"].notna().all()
    assert dlrm.breakdown["exposed_unsplit_ns"].tolist() == [0] * 8


def test_shifted_clocks_change_nothing_in_dlrm(dlrm):
    assert_same_when_shifted(dlrm, seed=3)


# --- nanogpt-h100-w8: windows that differ ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nanogpt() -> Analysis:
    return analyse(TRACES / "nanogpt-h100-w8")


@pytest.fixture(scope="module")
def nanogpt_truth() -> list[dict[str, str]]:
    with (EXPECTED / "collectives-nanogpt-h100-w8.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


SAME_TIMES = ("arrival_skew_ns", "end_skew_ns", "min_dur_ns", "last_arrival_to_last_end_ns")


@pytest.mark.slow
def test_collectives_of_nanogpt(nanogpt, nanogpt_truth):
    found = records(nanogpt.collectives)
    assert len(found) == len(nanogpt_truth) == 84
    assert sum(row["complete"] for row in found) == 76
    start = min(row["first_start_ns"] for row in found)
    kinds = {"ReduceScatter": "reduce_scatter", "AllGather": "all_gather", "AllReduce": "all_reduce"}
    for row, wanted in zip(found, nanogpt_truth, strict=True):
        assert (row["ranks"], row["complete"]) == (wanted["ranks"], wanted["complete"] == "True")
        assert row["collective"] == kinds[wanted["op"]]
        assert [row[c] for c in SAME_TIMES] == [int(wanted[c]) for c in SAME_TIMES]
        assert row["first_start_ns"] - start == int(wanted["first_start_ns"])
        assert row["last_by_ns"] <= 2 * US or row["last_rank"] == int(wanted["last_rank"])
    assert sum(row["last_by_ns"] <= 2 * US for row in found) == 14


@pytest.mark.slow
def test_both_bandwidths_of_nanogpt(nanogpt, nanogpt_truth):
    # The kernels say neither group nor size of some; where the independent calculation knows it, both bounds agree.
    compared = 0
    for row, wanted in zip(records(nanogpt.collectives), nanogpt_truth, strict=True):
        if wanted["size_bytes"] and row["complete"]:
            assert row["size_bytes"] == int(wanted["size_bytes"])
            assert row["busbw_high_gb_per_s"] == pytest.approx(float(wanted["busbw_from_min_dur_gb_per_s"]), abs=6e-4)
            last = float(wanted["busbw_from_last_arrival_gb_per_s"])
            assert row["busbw_low_gb_per_s"] == pytest.approx(last, abs=6e-4)
            compared += 1
    assert compared == sum(bool(w["size_bytes"]) and w["complete"] == "True" for w in nanogpt_truth) > 0


@pytest.mark.slow
def test_kernels_from_before_the_window_of_nanogpt_are_matched_too(nanogpt):
    joined = nanogpt.calls.merge(nanogpt.matches, on="call_id")
    assert len(joined) == sum(int(row["n_comm"]) for row in expected("breakdown.csv", "nanogpt-h100-w8"))
    before = joined[joined["issue_ns"].isna()]
    assert before.groupby("rank").size().between(20, 28).all()
    assert (before["matched_by"] != "none").all()
    # Their sizes are not in the trace: not known, or those of the siblings.
    sizes = joined.groupby("collective_id")["size_bytes"].agg(["nunique", "first"])
    assert (sizes["nunique"] <= 1).all()
    given = nanogpt.collectives.set_index("collective_id")["size_bytes"]
    assert given.equals(sizes["first"].rename("size_bytes"))


@pytest.mark.slow
def test_nothing_wrong_in_nanogpt_is_called_certain(nanogpt, nanogpt_truth):
    assert nanogpt.collectives["certain"].any()
    for row, wanted in zip(records(nanogpt.collectives), nanogpt_truth, strict=True):
        assert not row["certain"] or row["ranks"] == wanted["ranks"]


def members_of(matched: pd.DataFrame) -> set[frozenset[int]]:
    return {frozenset(ids) for _, ids in matched.groupby("collective_id")["call_id"]}


def assert_same_when_shifted(found: Analysis, seed: int, *, up_to_ns: int = 20_000_000) -> None:
    """Each rank's clock set otherwise, nothing known about hosts: the same members, skews within the uncertainty."""
    calls, ranks = found.calls, found.run.ranks
    chance = random.Random(seed)
    ahead = calls["rank"].map({rank: chance.randint(-up_to_ns, up_to_ns) for rank in ranks})
    shifted = calls.assign(start_ns=calls["start_ns"] + ahead, issue_ns=calls["issue_ns"] + ahead)
    hosts: dict[int, str | None] = dict.fromkeys(ranks)
    matched = matches_of(shifted, hosts)
    assert members_of(matched) == members_of(found.matches)
    known = compared_clocks(shifted, matched, hosts)
    split = split_calls(shifted, matched, known, found.run.world_size)
    table = collectives(shifted, matched, split, known, found.run.world_size)
    of_call = found.matches.merge(matched, on="call_id", suffixes=("", "_shifted"))
    number = of_call.drop_duplicates("collective_id").set_index("collective_id")["collective_id_shifted"]
    before = found.collectives.set_index("collective_id")
    after = table.set_index("collective_id").loc[number[before.index]].set_axis(before.index)
    uncertain = int(known["uncertainty_ns"].max() + found.clocks["uncertainty_ns"].max())
    for column in ("arrival_skew_ns", "end_skew_ns"):
        assert ((before[column] - after[column]).abs().dropna() <= 2 * uncertain).all(), column
    assert before["min_dur_ns"].equals(after["min_dur_ns"])
    waits = found.participation.merge(split, on="call_id", suffixes=("", "_shifted"))
    assert ((waits["wait_ns"] - waits["wait_ns_shifted"]).abs().dropna() <= 2 * uncertain).all()


# --- the same run told otherwise --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=with_slow(["dlrm-v100-w8", "torchrec-v100-w4"], ["nanogpt-h100-w8"]))
def real(request: pytest.FixtureRequest) -> Analysis:
    return analyse(TRACES / request.param)


def assert_kept(
    found: Analysis,
    calls: pd.DataFrame,
    *,
    hosts: dict[int, str | None] | None = None,
    told: Evidence | None = None,
    least_certain: float = 0.95,
) -> None:
    """Calls that are left, or told otherwise, make up what is left of the same collectives, nearly all as certain."""
    matched = matches_of(calls, found.run.hosts if hosts is None else hosts, told)
    left = set(calls["call_id"])
    before = {frozenset(members & left) for members in members_of(found.matches)} - {frozenset()}
    several = {members for members in before if len(members) > 1}
    after = members_of(matched)
    assert len(several - after) <= 0.01 * len(several)
    certain = matched[matched["certain"]].groupby("collective_id")["call_id"].agg(frozenset)
    wrong = [members for members in certain if not any(members <= whole for whole in before)]
    assert not wrong
    was = found.matches.set_index("call_id")["certain"].reindex(sorted(left))
    assert matched["certain"].mean() >= least_certain * was.mean()


@pytest.mark.slow_cases("dlrm-v100-w8")
def test_without_sequence_numbers(real: Analysis) -> None:
    none = pd.array([pd.NA] * len(real.calls), dtype="Int64")
    assert_kept(real, real.calls.assign(seq=none, comms_id=pd.array(none, dtype="string")))


@pytest.mark.parametrize("up_to_ns", [3_000_000, 3_000_000_000])
def test_with_other_clocks(real: Analysis, up_to_ns: int) -> None:
    chance = random.Random(up_to_ns)
    ahead = real.calls["rank"].map({rank: chance.randint(-up_to_ns, up_to_ns) for rank in real.run.ranks})
    shifted = real.calls.assign(start_ns=real.calls["start_ns"] + ahead, issue_ns=real.calls["issue_ns"] + ahead)
    assert_kept(real, shifted, hosts=dict.fromkeys(real.run.ranks))


def test_with_ranks_renamed(real: Analysis) -> None:
    ranks = real.run.ranks
    other = dict(zip(ranks, [*ranks[3:], *ranks[:3]], strict=True))
    groups = real.calls["pg_ranks"].map(
        lambda told: " ".join(map(str, sorted(other[int(r)] for r in told.split()))), "ignore"
    )
    renamed = real.calls.assign(rank=real.calls["rank"].map(other), pg_ranks=groups.astype("string"))
    assert_kept(real, renamed, hosts={other[rank]: host for rank, host in real.run.hosts.items()})


@pytest.mark.parametrize("place", [0, -1])
def test_without_one_rank(real: Analysis, place: int) -> None:
    told = Evidence(real.run.clock_probes, real.of(pending), real.run.process_groups, real.run.world_size)
    left = real.calls[real.calls["rank"] != real.run.ranks[place]].reset_index(drop=True)
    # That only one group can be meant shows in dlrm by the rank all others wait for.
    unsure = real.run.name.startswith("dlrm") and place == -1
    assert_kept(real, left, told=told, least_certain=0.0 if unsure else 0.95)


def test_without_the_first_fifth(real: Analysis) -> None:
    calls = real.calls
    begin = calls.groupby("rank")["start_ns"].transform("min")
    length = calls.groupby("rank")["start_ns"].transform("max") - begin
    assert_kept(real, calls[calls["start_ns"] > begin + length // 5].reset_index(drop=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow([0], range(1, 5)))
def test_shifted_clocks_change_nothing_in_nanogpt(nanogpt, seed):
    assert_same_when_shifted(nanogpt, seed)


@pytest.mark.parametrize("column", with_slow(["seq", "size_bytes"], ["comms_id", "dtype"]))
def test_nanogpt_without_some_arguments_gives_the_same(nanogpt, column):
    bare = nanogpt.calls.assign(**{column: pd.array([pd.NA] * len(nanogpt.calls), dtype=nanogpt.calls[column].dtype)})
    assert members_of(matches_of(bare, nanogpt.run.hosts)) == members_of(nanogpt.matches)


# --- torchrec-v100-w4: one rank lacks a call, another is late --------------------------------------------------------


@pytest.fixture(scope="module")
def torchrec() -> Analysis:
    return analyse(TRACES / "torchrec-v100-w4", whole=True)


@pytest.mark.slow
def test_collectives_of_torchrec_are_possible(torchrec):
    assert torchrec.calls.groupby("rank").size().tolist() == [32, 32, 31, 32]
    of_call = torchrec.calls[["call_id", "collective"]]
    joined = torchrec.participation.drop(columns="collective").merge(of_call, on="call_id")
    slack = 2 * int(torchrec.clocks["uncertainty_ns"].max())
    for _, members in joined.groupby("collective_id"):
        assert members["rank"].is_unique
        assert members["collective"].nunique() <= 1
        left = (members["arrived_ns"] + members["dur_ns"]).min()
        assert members["arrived_ns"].max() <= left + slack
    counts = torchrec.collectives["ranks"].str.split().str.len()
    assert (counts == 4).sum() >= 31
    assert torchrec.collectives.loc[counts < 4, "complete"].eq(False).all()


@pytest.mark.slow
def test_rank_2_of_torchrec_is_the_one_the_others_wait_for(torchrec):
    table = torchrec.ranks.set_index("rank")
    assert table["times_last"].idxmax() == 2
    assert table["caused_wait_ns"].idxmax() == 2
    assert table["wait_ns"].idxmin() == 2
    assert table["caused_wait_frac"].max() > 0.9
    # Its kernels are launched 8 to 22 ms after the GPU was ready for them.
    assert table.loc[2, "because"] == "cpu"
    run = records(torchrec.verdicts)[0]
    # Two fifths of a step are idle, mostly while memory is allocated.
    assert (run["collective"], run["verdict"]) == ("run", "allocator-bound")
    assert "could not be split" in run["not_known"]


@pytest.mark.parametrize("seed", with_slow([0], [1, 2]))
def test_shifted_clocks_change_nothing_in_torchrec(torchrec, seed):
    assert_same_when_shifted(torchrec, seed)


@pytest.mark.slow_cases("ddp-v100-r1of2-calls1")
@pytest.mark.parametrize(
    ("traces", "calls"),
    [
        ("ddp-a100-r0of2", {"all_reduce": 15, "broadcast": 6}),
        ("ddp-v100-r1of2", {"all_reduce": 2020}),
        ("vllm-b200-r0of8", {"all_reduce": 73, "all_gather": 1}),
    ],
)
def test_kinds_of_calls(traces, calls):
    found = analyse(TRACES / traces).calls
    assert found["collective"].value_counts().to_dict() == calls


@pytest.mark.slow_cases("nanogpt-h100-w8")
@pytest.mark.parametrize("traces", a_sample(SETS, 3, seed=1))
def test_calls_of_each_file_alone_are_those_of_the_run(traces):
    found = analyse(TRACES / traces)
    late = Analysis(found.run)
    pd.testing.assert_frame_equal(found.calls, late.calls)
    assert found.early is not None or not len(found.run.process_groups)


def test_rccl_kernels_are_named_by_their_arguments():
    found = analyse(TRACES / "rccl-mi300x-r0of8").calls
    known = found[found["collective"].notna()]
    assert len(found) == 17
    assert len(known) == 12
    assert set(known["metadata_from"]) == {"kernel"}
    assert set(found["device"]) == {"2"}


def test_uneven_all_to_all_of_moe_has_sizes():
    found = analyse(TRACES / "moe-b200-r0of2").calls
    known = found[found["metadata_from"] == "kernel"]
    assert set(known["collective"]) == {"all_to_all"}
    assert known["seq"].notna().all()
    assert known["size_bytes"].notna().all()
    assert (known["size_bytes"] > 0).all()


# --- traces with something missing -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("distributed_info_not_found.json.gz", "no device activity"),
        ("rank_non_gpu.json.gz", "no device activity"),
        ("rank_not_found.json.gz", "no device activity"),
    ],
)
def test_traces_without_a_gpu_say_so(capsys, name, message):
    path = str(TRACES / "holes" / name)
    assert main(["breakdown", path]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert name in captured.err
    assert message in captured.err
    assert main([path]) == 0
    assert message in capsys.readouterr().out


@pytest.mark.slow
def test_a_trace_without_a_rank_is_rank_0_and_says_so(capsys):
    assert main([str(TRACES / "holes" / "rank_not_found.json.gz")]) == 0
    assert "does not say which rank it is; being alone it is taken as rank 0" in capsys.readouterr().out


def test_old_category_names(capsys):
    (row,) = printed(capsys, "breakdown", str(TRACES / "holes" / "inference_rank_1.json.gz"))
    assert (row["rank"], row["n_compute"], row["window_ns"], row["compute_ns"]) == ("1", "4", "1629000", "30000")
    assert_conserved([row])
    assert (row["comm_ns"], row["hidden_comm_frac"]) == ("0", "")


def test_a_gpu_without_a_job(capsys):
    path = str(TRACES / "holes" / "mi250_minitoy_train_ROCm6_2_kineto.json.gz")
    assert_conserved(printed(capsys, "breakdown", path))
    assert_conserved(printed(capsys, "breakdown", "--by", "step", path))
    assert main(["table", "collectives", path]) == 1
    assert "no communication in the profiled window" in capsys.readouterr().err


@pytest.mark.slow
def test_one_rank_of_300_on_gloo(capsys):
    path = str(TRACES / "holes" / "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    (row,) = printed(capsys, "breakdown", "--whole", path)
    assert (row["rank"], row["device"], row["n_comm"]) == ("34", "cpu", "10")
    assert (row["exposed_wait_ns"], row["exposed_transfer_ns"]) == ("", "")
    assert row["exposed_unsplit_ns"] == row["exposed_comm_ns"]
    rows = printed(capsys, "table", "collectives", path)
    assert {(r["complete"], r["matched_by"], r["busbw_gb_per_s"]) for r in rows} == {("False", "none", "")}
    assert {r["note"] for r in rows} == {"no other rank shows it at that time"}


@pytest.mark.slow_cases("summary")
@pytest.mark.parametrize("command", ["summary", "breakdown"])
def test_files_left_out_of_a_folder_are_never_left_out_silently(capsys, command):
    code = main([command, str(TRACES / "holes")])
    captured = capsys.readouterr()
    assert code == 1 or "left out 5 JSON files" in captured.out + captured.err


# --- clocks of one host ----------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("dlrm-v100-w8", "torchrec-a2a-063")
@pytest.mark.parametrize("traces", ["nanogpt-h100-w8", "dlrm-v100-w8", "lightllm-sglang-427996", "torchrec-a2a-063"])
def test_raw_clocks_of_one_host_are_kept(traces):
    found = analyse(TRACES / traces)
    clocks = found.clocks
    assert (clocks["offset_ns"] == 0).all()
    assert (clocks["drift_ppm"] == 0).all()
    assert clocks["bends"].isna().all()
    assert (clocks["uncertainty_ns"] <= 30 * US).all()
    known = clocks["host"].notna()
    assert clocks.loc[known, "basis"].str.startswith("all linked ranks ran on").all()
    assert (clocks.loc[~known, "basis"] == "raw clocks agree within the uncertainty").all()


@pytest.mark.parametrize("traces", ["torchrec-v100-w4", "torchrec-a2a3"])
def test_gpus_that_could_not_have_met_by_raw_clocks_are_put_right_without_jump_or_drift(traces):
    clocks = analyse(TRACES / traces).clocks
    assert (clocks["drift_ppm"] == 0).all()
    assert clocks["bends"].isna().all()
    assert (clocks["offset_ns"] != 0).any()
    assert (clocks["uncertainty_ns"] <= 70 * US).all()
