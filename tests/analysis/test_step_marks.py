"""Steps by any marker: which annotations are taken, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import MS, Trace, analysed

from commtrace import compare
from commtrace.analysis.comparison.trend import RunTrend
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.step_names import said_by
from commtrace.analysis.errors import NoSuchSteps, RunError
from commtrace.analysis.recording.recording import Annotation
from commtrace.analysis.recording.step_marks import step_annotations
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.run.several_runs import Claim, several_runs
from commtrace.analysis.show.comparison import headline
from commtrace.analysis.show.first_screen import first_screen
from commtrace.analysis.show.overview import brief
from commtrace.cli import main

OTHER_THREAD = 77


def marked(*names: str, every: int = 10 * MS, dur: int = 9 * MS) -> Trace:
    """A device that works in each of these annotations, launched there."""
    trace = Trace()
    for place, name in enumerate(names):
        begin = place * every
        trace.event("user_annotation", name, begin, dur).kernel("gemm", begin + 2 * MS, 5 * MS, launch=begin + MS)
    return trace


def kinds(found: Analysis) -> list[tuple[int, str | None, int | None, int | None]]:
    return [(row["step"], row["kind"], row["requests"], row["tokens"]) for row in records(found.steps)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk9sqsq37sqsk9)", ("mixed", 46, 8192)),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, 888)),
        ("execute_context_0(0)_generation_32(32)", ("decode", 32, 32)),
        ("execute_new_2_cached_0", ("prefill", 2, None)),
        ("execute_new_1_cached_7", ("mixed", 8, None)),
        ("execute_new_0_cached_38", ("cached", 38, None)),  # some may go on with a long prefill
        ("step[EXTEND bs=15 toks=9223372036854775808]", ("prefill", 15, None)),
        ("step[DECODE bs=32]", ("decode", 32, 32)),
        ("step[EXTEND bs=15 toks=15360]", ("prefill", 15, 15360)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", ("prefill", 2, 12)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1]", ("mixed", 2, 6)),
        ("step[TARGET_VERIFY bs=4]", ("verify", 4, None)),
        ("step[DRAFT_EXTEND bs=4]", ("draft_extend", 4, None)),
        ("step[DRAFT_EXTEND_V2 bs=4 toks=16]", ("draft_extend", 4, 16)),
        ("step[2 bs=4]", (None, None, None)),
        ("step[IDLE bs=0]", ("idle", 0, None)),
        ("prefill[bs=2 tok=16384]", ("prefill", 2, 16384)),
        ("decode[bs=16]", ("decode", 16, 16)),
        ("[Executor] _forward_step 7: 0 ctx reqs, 5 gen reqs", ("decode", 5, None)),
        ("[Executor] _forward_step: 1 ctx reqs, 5 gen reqs", ("mixed", 6, None)),
        ("[Executor] _forward_step 8: 2 ctx reqs, 700 ctx tokens, 0 gen reqs", ("prefill", 2, 700)),
        ("[Executor] _forward_step 9: 2 ctx reqs, 700 ctx tokens, 5 gen reqs", ("mixed", 7, None)),
        ("[Executor] _forward_step 9: 0 ctx reqs, 0 ctx tokens, 5 gen reqs", ("decode", 5, None)),
        ("Prefill", ("prefill", None, None)),
        ("[pl][profile]run_training_batch", ("train", None, None)),
        ("[pl][profile][Strategy]DDPStrategy.validation_step", ("eval", None, None)),
        ("[pl][profile]run_training_epoch", (None, None, None)),
        ("execute_context_x", (None, None, None)),
        ("step[" + "a" * 2000, (None, None, None)),
    ],
)
def test_what_names_say(name: str, said: tuple[str | None, int | None, int | None]) -> None:
    assert said_by(name)[:3] == said


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["step[EXTEND bs=1 toks=100]", "step[DECODE bs=4]"], [(0, "prefill", 1, 100), (1, "decode", 4, 4)]),
        (["train_step 5", "train_step 6"], [(5, "train", None, None), (6, "train", None, None)]),
        (["train_step", "train_step", "eval_step", "eval_step"],
         [(n, kind, None, None) for n, kind in enumerate(["train", "train", "eval", "eval"])]),
        (["my own iteration of it"] * 3, [(n, None, None, None) for n in range(3)]),
        (["[pl][profile]run_training_batch"] * 2, [(0, "train", None, None), (1, "train", None, None)]),
        # None that repeats, none named like a step, and those of optimizers.
        (["train_step", "layer 1", "layer 2"], []),
        (["Optimizer.step#SGD.step"] * 3, []),
        (["ProfilerStep#x"] * 3, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("details", [False, True])
def test_annotations_that_mark_steps(
    tmp_path: Path, names: list[str], found: list[tuple[int, str | None, int | None, int | None]], details: bool
) -> None:
    trace = marked(*names).event("user_annotation", "batch 1", 0, 30 * MS, tid=OTHER_THREAD)  # launches nothing
    path = trace.write(tmp_path)
    assert kinds(analyse(path, details=details)) == found


def test_torch_marks_steps_unless_one_holds_several_of_an_engine(tmp_path: Path) -> None:
    trace = marked("step[DECODE bs=2]", "step[DECODE bs=3]", "step[DECODE bs=3]")
    for number, place in enumerate((0, 10, 20)):
        trace.step(7 + number, place * MS, (place + 10) * MS)
    assert kinds(analysed(tmp_path / "one", trace)) == [
        (7, "decode", 2, 2), (8, "decode", 3, 3), (9, "decode", 3, 3)
    ]  # fmt: skip
    several = marked("step[DECODE bs=2]", "step[DECODE bs=3]").step(7, 0, 20 * MS)
    found = analysed(tmp_path / "several", several)
    assert kinds(found) == [(0, "decode", 2, 2), (1, "decode", 3, 3)]
    assert any("a step of torch.profiler holds several" in note for note in found.run.notes)


def test_steps_cover_most_follow_each_other_and_launch_something() -> None:
    def ranges(name: str, thread: int, count: int, every: int, dur: int) -> list[Annotation]:
        return [Annotation(f"{name} {n}", thread, every * n, dur, None, None, None) for n in range(count)]

    iterations = ranges("iteration", 7, 3, 100, 90)
    others = [*ranges("micro_batch", 7, 30, 10, 5), *ranges("batch", 7, 30, 10, 5), *ranges("batch", 8, 9, 200, 190)]
    nested = [Annotation(f"step {n}", 7, n, 1000 - 2 * n, None, None, None) for n in range(9)]
    assert step_annotations([*others, *nested, *iterations], {7}, None) == iterations


def test_of_marks_in_each_other_the_outermost_count_and_those_that_overlap_only_if_asked_for(tmp_path: Path) -> None:
    nested = marked("step 1", "step 2").event("user_annotation", "step 10", MS, 3 * MS)
    assert [row[0] for row in kinds(analysed(tmp_path / "nested", nested))] == [1, 2]
    rounded = marked("step 3", "step 2", dur=10 * MS + 900)
    found = analysed(tmp_path / "rounded", rounded)
    assert [row[0] for row in kinds(found)] == [0, 1]
    assert any("not by their own numbers, as these do not go up" in note for note in found.run.notes)
    overlap = marked("step 1", "step 2", "step 3", dur=12 * MS).write(tmp_path / "overlap")
    none = analyse(overlap)
    assert kinds(none) == []
    assert any("'step 1' are not taken for steps, as they overlap" in note for note in none.run.notes)
    asked = analyse(overlap, step_marker="step (?P<number>.)")
    assert asked.run.activities["step"].tolist() == [1, 2, 3]


def test_a_marker_that_is_given_goes_first(tmp_path: Path) -> None:
    trace = marked("warm up", "go 3: 8 tokens", "go 5: 9 tokens").step(1, 0, 30 * MS)
    path = trace.write(tmp_path)
    found = analyse(path, step_marker=r"go (?P<number>\d+): (?P<tokens>\d+)")
    assert kinds(found) == [(3, None, None, 8), (5, None, None, 9)]
    assert found.breakdown_steps["step"].tolist() == [3, 5]
    assert kinds(analyse(path, step_marker="go", last=1)) == [(1, None, None, None)]
    engine = marked("step[DECODE bs=2]", "step[EXTEND bs=1 toks=9]", "step[DECODE bs=2]").write(tmp_path / "engine")
    assert kinds(analyse(engine, step_marker="DECODE")) == [(0, "decode", 2, 2), (1, "decode", 2, 2)]
    with pytest.raises(NoSuchSteps, match="no annotation of any trace matches 'gone'"):
        analyse(path, step_marker="gone")
    with pytest.raises(ValueError, match="is not a regular expression"):
        analyse(path, step_marker="(")
    with pytest.raises(
        ValueError, match="has the group 'token', which says nothing; kind, requests, tokens, number do"
    ):
        analyse(path, step_marker="(?P<token>[0-9]+)")


def test_work_belongs_to_the_step_that_launched_it_through_a_graph_too(tmp_path: Path) -> None:
    trace = marked("step[DECODE bs=1]", "step[DECODE bs=1]")
    for event in [event for event in trace.events if event["name"] == "gemm"]:  # another kernel of the same launch
        trace.events.append({**event, "name": "norm", "ts": event["ts"] + 30_000.0})
    assert analysed(tmp_path, trace).run.activities["step"].value_counts().to_dict() == {0: 2, 1: 2}


def test_checkpoints_are_a_kind_on_all_ranks_and_no_outlier(tmp_path: Path) -> None:
    def rank(number: int, *, saves: bool) -> Trace:
        trace, at = Trace(rank=number, world=2), 0
        for step, length in enumerate((10, 10, 10, 60, 10, 10)):
            trace.step(step, at, at + length * MS).kernel("gemm", at, (length if length < 60 else 10) * MS)
            if length == 60 and saves:
                trace.event("user_annotation", "save_checkpoint", at + 10 * MS, 45 * MS)
            at += length * MS
        return trace

    found = analysed(tmp_path, rank(0, saves=True), rank(1, saves=False))
    assert [row["kind"] for row in records(found.steps)] == [None, None, None, "checkpoint", None, None]
    assert [row["left_out"] for row in records(found.steps)] == [None, None, None, "kind", None, None]
    assert "Step 3 takes" not in found.verdict
    assert "A checkpoint step takes 60.0 ms: 50.0 ms idle (n = 1)." in found.summary()


@pytest.mark.parametrize(
    ("mark", "inside", "kind"),
    [
        ("train_step", "save_checkpoint", "train"),
        ("train_step", "evaluate_loss", "train"),
        ("trainer.evaluation_step", "gemm", "eval"),
        ("training_step with activation checkpointing", "gemm", "train"),
        ("prefill_decode_step", "gemm", None),
        ("step", "activation_checkpointing", None),
        ("step", "gradient checkpoint", None),
        ("step", "load_checkpoint", None),
        ("step", "checkpoint_forward", None),
        ("step", "torch.utils.checkpoint", None),
        ("step", "test", None),
        ("step", "retrieval_eval_head", None),
        ("step", "Save model 100", "checkpoint"),
        ("step", "[pl][profile]save_checkpoint", "checkpoint"),
        ("step", "checkpoint", "checkpoint"),
        ("step", "trainer.evaluate", "eval"),
        ("step", "validation loop #3", "eval"),
    ],
)
def test_words_tell_the_kind_of_a_step(tmp_path: Path, mark: str, inside: str, kind: str | None) -> None:
    trace = marked(*[mark] * 4)
    for step, length in enumerate((8, 8, 2, 2)):  # a small part of a step does not tell what it is
        trace.event("user_annotation", inside, step * 10 * MS + MS // 2, length * MS)
    small = None if mark == "step" else kind
    assert [row[1] for row in kinds(analysed(tmp_path, trace))] == [kind, kind, small, small]


def test_a_checkpoint_after_a_step_of_training_makes_it_one_of_that_kind(tmp_path: Path) -> None:
    trace = marked("train_step 1", "train_step 2", "save_checkpoint", "train_step 3")
    assert [row[:2] for row in kinds(analysed(tmp_path, trace))] == [(1, "train"), (2, "checkpoint"), (3, "train")]


def test_steps_of_two_captures_of_a_process_have_different_numbers(tmp_path: Path) -> None:
    for cycle, name in ((0, "step[DECODE bs=1]"), (1, "step[DECODE bs=2]")):
        trace = marked(name, name)
        for event in trace.events:
            event["ts"] += cycle * 1e6
        trace.write(tmp_path, f"host_1000.{cycle + 1}.pt.trace.json.gz")
    assert [(row["step"], row["tokens"], row["devices"]) for row in records(analyse(tmp_path).steps)] == [
        (0, 1, 1), (1, 1, 1), (100_000, 2, 1), (100_001, 2, 1)
    ]  # fmt: skip


def test_stages_that_sglang_traces_by_themselves_are_of_one_process(tmp_path: Path) -> None:
    for stage, name in (("EXTEND", "step[EXTEND bs=1 toks=64]"), ("DECODE", "step[DECODE bs=4]")):
        for rank in range(2):
            trace = marked(name, name)
            trace.rank, trace.world, trace.pid = rank, 2, 100 + rank
            trace.write(tmp_path, f"1743-TP-{rank}-{stage}.trace.json.gz")
    assert [(step, kind) for step, kind, *_ in kinds(analyse(tmp_path))] == [
        (0, "prefill"), (1, "prefill"), (100_000, "decode"), (100_001, "decode")
    ]  # fmt: skip


def test_ranks_whose_captures_begin_with_different_steps_are_noted(tmp_path: Path) -> None:
    names = ["step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]", "step[DECODE bs=1]"]
    first, second = marked(*names), marked(*names[1:])
    for rank, trace in enumerate((first, second)):
        trace.rank, trace.world, trace.pid = rank, 2, 100 + rank
    found = analysed(tmp_path, first, second)
    assert any("step 0 is prefill on rank 0 and decode on rank 1" in note for note in found.run.notes)
    assert [(step, kind) for step, kind, *_ in kinds(found)] == [(0, None), (1, "decode"), (2, "decode")]
    assert "A decode step takes" in found.summary()


def test_a_rank_without_marks_is_noted_and_in_no_mean_over_devices(tmp_path: Path) -> None:
    ranks = [marked(*names) for names in (["step[DECODE bs=3]"] * 3, ["nothing"] * 3)]
    for rank, trace in enumerate(ranks):
        trace.rank, trace.world, trace.pid = rank, 2, 100 + rank
    said = analysed(tmp_path, *ranks).summary()
    assert "A decode step takes 10.0 ms" in said
    assert "devices)" not in said
    assert "rank 1: no annotation marks steps, so no steps are known" in " ".join(said.split())


def engine(folder: Path, name: str, world: int, *steps: str, pid: int = 10) -> None:
    """The traces of an engine, each named by `name` and its rank."""
    for rank in range(world):
        trace = marked(*(steps or ("step[DECODE bs=4]",)))
        trace.rank, trace.world, trace.pid = rank, world, pid + rank
        trace.write(folder, f"{name.format(rank)}.trace.json.gz")


def engines(capsys: pytest.CaptureFixture[str], *args: str | Path) -> list[tuple[str | None, str, int]]:
    """Engine, kind and steps of the rows of `serving`."""
    assert main(["serving", "--no-cache", "--format", "json", *map(str, args)]) == 0
    return [(row["engine"], row["kind"], row["steps"]) for row in json.loads(capsys.readouterr().out)["rows"]]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([("dp0_pp0_tp{0}_rank{0}", 2), ("dp1_pp0_tp{0}_rank{0}", 2)], ["dp0", "dp1"]),
        ([("1743-TP-{0}-DP-0", 2), ("1743-TP-{0}-DP-1", 2)], ["DP-0", "DP-1"]),
        ([("decode-TP-{0}", 4), ("prefill-TP-{0}", 2)], ["decode", "prefill"]),
        ([("decode-0-TP-{0}", 2), ("prefill-0-TP-{0}", 1), ("prefill-1-TP-{0}", 1)],
         ["decode-0", "prefill-0", "prefill-1"]),
        ([("host_7{0}", 4), ("host_9{0}", 2)], ["2 ranks", "4 ranks"]),
        ([("decode/{0}", 2), ("prefill/{0}", 2)], ["decode", "prefill"]),
        # Names say no more than which process it was.
        ([("host_7{0}", 2), ("host_9{0}", 2)], []),
    ],
)  # fmt: skip
def test_what_tells_engines_apart(names: list[tuple[str, int]], found: list[str]) -> None:
    claims = [
        Claim(Path("traces", name.format(rank)), name.format(rank), rank, world)
        for name, world in names
        for rank in range(world)
    ]
    runs = several_runs(claims)
    assert [run.name for run in runs] == found
    assert sorted(path for run in runs for path in run.paths) == sorted(claim.path for claim in claims if runs)


@pytest.mark.slow
def test_engines_found_together_are_rows_of_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine(tmp_path, "decode-TP-{0}", 2)
    engine(tmp_path, "prefill-TP-{0}", 1, "step[EXTEND bs=1 toks=9]")
    assert engines(capsys, tmp_path) == [("decode", "decode", 1), ("prefill", "prefill", 1)]
    with pytest.raises(RunError, match=r"commtrace [^ ]*/decode-TP-\*`, `commtrace [^ ]*/prefill-TP-0[.]"):
        analyse(tmp_path)
    assert main(["summary", "--no-cache", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"commtrace {tmp_path}/decode-TP-*:" in said[0]
    assert [line.partition(" ")[0] for line in said[2:]] == ["decode", "prefill"]


def test_replicas_of_one_world_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for replica in range(2):
        trace = marked("step[DECODE bs=4]")
        trace.rank, trace.world, trace.pid = replica, 2, 10 + replica
        trace.write(tmp_path, f"1743-TP-{replica}-DP-{replica}.trace.json.gz")
    assert engines(capsys, tmp_path) == [(None, "decode", 1)]


@pytest.mark.slow
def test_engines_in_folders_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine(tmp_path / "prefill", "TP-{0}", 1, "step[EXTEND bs=1 toks=9]")
    engine(tmp_path / "idle", "TP-{0}", 1, "nothing")
    for paths in ([tmp_path], [tmp_path / "prefill", tmp_path / "idle"]):
        assert engines(capsys, *paths) == [("prefill", "prefill", 1)]


def served(folder: Path) -> Analysis:
    """Decode steps of 10, 12 and 14 ms for 10, 20 and 30 tokens, twice each, and one prefill."""
    trace, at = Trace(), 0
    for tokens in (10, 20, 30, 10, 20, 30):
        length = (8 + tokens // 5) * MS
        trace.event("user_annotation", f"step[DECODE bs={tokens}]", at, length).kernel("gemm", at, length - MS)
        at += length
    trace.event("user_annotation", "step[EXTEND bs=1 toks=512]", at, 40 * MS).kernel("gemm", at, 40 * MS)
    return analysed(folder, trace)


def test_serving_by_kind_and_size(tmp_path: Path) -> None:
    found = served(tmp_path)
    rows = [
        (row["kind"], row["tokens"], row["steps"], row["window_ns"], row["idle_ns"], round(row["tokens_per_s"]))
        for row in records(found.serving)
    ]
    assert rows == [
        ("decode", 10, 2, 10 * MS, MS, 1_000),
        ("decode", 20, 2, 12 * MS, MS, 1_667),
        ("decode", 30, 2, 14 * MS, MS, 2_143),
        ("prefill", 512, 1, 40 * MS, 0, 12_800),
    ]
    decode, prefill = records(found.serving_fits)
    assert (decode["sizes"], decode["steps"]) == (3, 6)
    assert decode["intercept_us"] == pytest.approx(8_000)
    assert decode["slope_us_per_token"] == pytest.approx(200)
    assert decode["r2_frac"] == pytest.approx(1)
    assert decode["residual_us"] == pytest.approx(0, abs=1e-6)
    assert prefill["slope_us_per_token"] is None
    assert prefill["note"] == "all steps have the same number of tokens; a fit needs three"


@pytest.mark.slow
def test_what_communication_costs_a_token_of_each_kind(tmp_path: Path) -> None:
    """Ranks of one engine say the same numbers; with data-parallel attention each says its own."""

    def rank(number: int, *sizes: str) -> Trace:
        trace = marked(*(f"step[{size}]" for size in sizes))
        trace.rank, trace.world, trace.pid = number, 2, 100 + number
        for step in range(len(sizes)):  # rank 1 comes 1 ms later, then 2 ms of transfer; idle before
            begin = (10 * step + 7 + number) * MS
            trace.nccl("all_reduce", begin, (3 - number) * MS, seq=step, launch=begin)
        return trace

    sizes = ("EXTEND bs=1 toks=100", *["DECODE bs=4"] * 3, "MIXED bs=2")
    decode, mixed, prefill = records(analysed(tmp_path / "one", *(rank(n, *sizes) for n in range(2))).serving_fits)
    assert (decode["steps"], decode["sizes"]) == (3, 1)
    assert decode["exposed_wait_us_per_token"] == pytest.approx(3 * 500 / 12)  # of two ranks, one waits 1 ms
    assert decode["exposed_transfer_us_per_token"] == pytest.approx(3 * 2000 / 12)
    assert decode["exposed_us_per_token"] == pytest.approx(3 * 2500 / 12)
    assert decode["exposed_frac"] == pytest.approx(0.25, rel=0.05)
    assert prefill["exposed_us_per_token"] == pytest.approx(25)
    assert (mixed["steps"], mixed["exposed_us_per_token"]) == (1, None)
    assert mixed["note"] == "no annotation says how many tokens in 1 step"
    found = analysed(tmp_path / "two", rank(0, *["DECODE bs=4"] * 3), rank(1, *["DECODE bs=4"] * 2, "DECODE bs=5"))
    assert [(row["tokens"], row["steps"], row["note"]) for row in records(found.serving)] == [
        (8, 2, None),
        (9, 1, None),
    ]


@pytest.mark.slow
def test_a_step_that_is_long_for_its_tokens(tmp_path: Path) -> None:
    trace, at = Trace(), 0
    for tokens, length in ((512, 10), (500, 10), (4096, 60), (512, 10)):
        trace.event("user_annotation", f"step[EXTEND bs=1 toks={tokens}]", at * MS, length * MS)
        trace.kernel("gemm", at * MS, length * MS)
        at += length
    trace.event("user_annotation", "step[IDLE bs=0]", at * MS, 300 * MS).kernel("gemm", at * MS, 1 * MS)
    trace.kernel("gemm", (at + 299) * MS, 1 * MS, launch=(at + 1) * MS)
    found = analysed(tmp_path, trace)
    assert "A prefill step takes 10.0 ms" in found.summary()  # although idle takes more time
    assert "Step 2 is left out: it takes 60.0 ms, longer than most, and has 4,096 tokens." in found.summary()
    assert "devices compute 50.0 ms longer; it has 4,096 tokens, others 512 at most." in found.verdict


def test_times_of_a_note_are_in_a_fitting_unit(tmp_path: Path) -> None:
    trace, at = Trace(), 0
    for length in (10_000, 10_000, 10_000, 60_000, 10_000):
        trace.event("user_annotation", "step[DECODE bs=1]", at, length).kernel("gemm", at, length)
        at += length
    notes = [row["note"] for row in records(analysed(tmp_path, trace).steps)]
    assert "it takes 60.0 us, longer than most, and has 1 token" in notes


def test_a_rank_without_requests_does_not_say_what_a_step_is(tmp_path: Path) -> None:
    ranks = [marked(*["step[IDLE bs=0]"] * 2), marked("step[DECODE bs=4]", "step[IDLE bs=0]")]
    for number, trace in enumerate(ranks):
        trace.rank, trace.world, trace.pid = number, 2, 100 + number
    assert kinds(analysed(tmp_path, *ranks)) == [(0, "decode", 4, 4), (1, "idle", 0, None)]


@pytest.mark.slow
def test_compare_is_about_a_kind_that_both_have_and_says_if_there_is_none(tmp_path: Path) -> None:
    served(a := tmp_path / "a")
    analysed(b := tmp_path / "b", marked(*["step[EXTEND bs=1 toks=64]"] * 4, *["step[DECODE bs=1]"] * 2))
    analysed(c := tmp_path / "c", marked(*["step[MIXED bs=1]"] * 4))
    both = compare(a, b)
    step, compute = records(both.comparison)[:2]
    # Decode, although prefill takes more time in B.
    assert (step["a_ns"], compute["a_ns"], compute["b_ns"]) == (12 * MS, 11 * MS, 5 * MS)
    assert "not the same work" not in step["note"]
    assert {kernel["a_ns"] for kernel in records(both.changed_kernels)} == {11 * MS}
    assert headline(both).startswith("Decode steps of B seem to take ")
    assert list(both.other_kinds) == ["A prefill step takes 40.0 ms in A and 10.0 ms in B (medians, n = 1 and 4)"]
    assert [row["step_ns"] for row in records(RunTrend((*both.a, *both.b)).trend)][:1] == [12 * MS]
    assert "steps of A are decode, those of B mixed" in records(compare(a, c).comparison)[0]["note"]


def test_the_first_screen_is_about_the_kind_that_takes_most_time(tmp_path: Path) -> None:
    found = served(tmp_path)
    said = found.summary()
    assert "Devices are idle for 1.0 ms of every 12.0 ms decode step" in said
    assert "steps 0-6: 6 decode, 1 prefill" in said
    assert "A decode step takes 12.0 ms (steps 0-5: 10.0 to 14.0" in said
    of_prefill = "A prefill step takes 40.0 ms (n = 1)."
    assert of_prefill in said
    assert found.verdict.startswith("Devices are idle for 1.0 of 12.0 ms in a decode step (8%). ")
    assert found.verdict.endswith(f" {of_prefill}")
    assert of_prefill in brief(found)
    assert [tile.label for tile in first_screen(found).tiles[:1]] == ["Decode step, mean of 6"]


@pytest.mark.slow
def test_a_kind_that_does_not_count_has_its_own_medians(tmp_path: Path) -> None:
    def rank(number: int) -> Trace:
        trace, at = Trace(rank=number, world=2), 0
        for seq, (name, compute, transfer) in enumerate((
            ("step[EXTEND bs=1 toks=512]", 80, 20),
            *[("step[DECODE bs=4]", 8, transfer) for transfer in (2, 3, 9)],
        )):  # fmt: skip
            trace.event("user_annotation", name, at * MS, (compute + transfer) * MS)
            trace.kernel("gemm", at * MS, compute * MS)
            at += compute
            trace.nccl("all_reduce", at * MS, transfer * MS, seq=seq, launch=(at - 1) * MS)
            at += transfer
        return trace

    found = analysed(tmp_path, rank(0), rank(1))
    assert "Exposed transfers take 20.0 of 100.0 ms in a prefill step (20%)." in found.verdict
    assert "A decode step takes 11.0 ms: 3.0 ms exposed communication (medians, n = 3)." in found.verdict
    assert "Step 3" not in found.summary()  # the longest decode step is shorter than any that counts
