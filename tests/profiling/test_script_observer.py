"""Which steps of a script are counted, and who goes first: an observer in this process, and loops of users."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from capturing import leftovers, metas, names_in_steps, trace, traced_steps
from torch.optim import optimizer as optimizers
from torch.profiler import ProfilerActivity, profile
from torch.utils import checkpoint

import commtrace
from commtrace.common import disk
from commtrace.profiling.base.keeping import TRACES_ONLY, Keeping
from commtrace.profiling.base.schedule import TRAILING_STEPS, Schedule
from commtrace.profiling.script.config import WHOLE_RUN, Limits, RunConfig, Target
from commtrace.profiling.script.watch import limit_watchdog, steps
from commtrace.profiling.script.watch import model as watched_model
from commtrace.profiling.script.watch.observer import Observer
from commtrace.profiling.sessions.afterwards import aside, conclusion, packing
from commtrace.profiling.sessions.session import Session

UNTIL_OVER = 20 + TRAILING_STEPS
"""Steps after which every capture here is over."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def watch(tmp_path):
    """Starts observers that write to `tmp_path / "run"`; the last one is finished in the end."""
    started = []

    def start(
        wait=1, warmup=1, active=2, repeat=1, limits=None, child=None, keeping=TRACES_ONLY, early_from=None, **options
    ) -> Observer:
        schedule = WHOLE_RUN if limits else Schedule(wait, warmup, active, repeat, early_from)
        config = RunConfig(Target("a.py", ("x",)), tmp_path, schedule, limits, "run", keeping=keeping, **options)
        started.append(Observer(config, ["python", "a.py", "x"], child=child))
        started[-1].attach()
        return started[-1]

    yield start
    started[-1].finish(None)


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def sgd(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def backward(model) -> None:
    model(torch.ones(2, 4)).sum().backward()


def train(model, optimizer, steps: int) -> None:
    for _ in range(steps):
        backward(model)
        optimizer.step()


def meta(folder) -> dict:
    return metas(folder / "run")[0]


def test_a_plain_loop(tmp_path, watch, model) -> None:
    observer = watch()
    train(model, sgd(model), UNTIL_OVER)
    found = meta(tmp_path)  # it is complete before the script is
    observer.finish(None)
    assert (found["complete"], found["reason"], found["rank"]) == (True, None, 0)
    assert [step["phase"] for step in found["steps"]] == [
        "idle",
        "warmup",
        "active",
        "active",
        *["idle"] * TRAILING_STEPS,
    ]
    assert traced_steps(trace(tmp_path / "run" / found["traces"][0])) == [2, 3]
    assert found["model"] == {"name": "Sequential", "parameters": 25, "bytes": 100, "buffer_bytes": 0}
    assert leftovers(tmp_path / "run") == []


@pytest.mark.parametrize(("done", "traced"), [(6, [2, 3, 4, 5]), (7, [2, 3, 4, 5]), (8, [2, 3, 4, 5]), (9, [7, 8, 9])])
def test_a_script_that_ends_in_the_steps_that_were_to_be_traced(tmp_path, watch, model, done, traced) -> None:
    """Steps before them are worth more than hardly any of them. Steps 6 to 11 are profiled, the first as warm-up."""
    observer = watch(wait=6, warmup=1, active=5, early_from=2)
    train(model, sgd(model), 1 + done)
    observer.finish(None)
    found = meta(tmp_path)
    assert traced_steps(trace(tmp_path / "run" / found["traces"][0])) == traced
    assert ("steps 2 to 5 are traced instead" in found["reason"]) == (traced[0] == 2)


def test_accumulated_gradients_are_one_step(tmp_path, watch, model) -> None:
    watch()
    optimizer = sgd(model)
    for batch in range(24):
        backward(model)
        if batch % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    content = trace(tmp_path / "run" / meta(tmp_path)["traces"][0])
    losses = [event for event in content["traceEvents"] if event.get("name") == "aten::sum"]
    assert len(losses) >= 3 * 2


def steps_inside(tmp_path, prefixes: tuple[str, ...]) -> list[list[str]]:
    return names_in_steps(trace(tmp_path / "run" / meta(tmp_path)["traces"][0]), prefixes)


def test_a_step_per_group_of_parameters_is_one_step_as_in_deepspeeds_zero(tmp_path, watch, model) -> None:
    observer = watch()
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.01)
    for _ in range(6):
        backward(model)
        groups = optimizer.param_groups
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = groups
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 5
    assert [len(names) for names in steps_inside(tmp_path, ("Optimizer.step",))] == [4, 4]


@pytest.mark.parametrize("critics", [1, 2, 4])
def test_a_step_is_a_round_of_the_optimizers_that_take_turns(tmp_path, watch, model, critics) -> None:
    """Also where the generator first steps when steps of the discriminator are traced already: an n_critic of 4."""
    observer = watch(wait=1, warmup=1, active=2)
    discriminator, generator = sgd(model), torch.optim.Adam(model.parameters())
    for _ in range(6):
        train(model, discriminator, critics)
        train(model, generator, 1)
    observer.finish(None)
    found = meta(tmp_path)
    assert (found["complete"], [step["step"] for step in found["steps"]]) == (True, [0, 1, 2, 3, 4])
    round_of_both = ["Optimizer.step#SGD.step"] * critics + ["Optimizer.step#Adam.step"]
    assert steps_inside(tmp_path, ("Optimizer.step",)) == [round_of_both] * 2


def test_an_optimizer_that_begins_too_late_to_count_anew_is_said(tmp_path, watch, model, capfd) -> None:
    observer = watch(wait=1, warmup=1, active=1)
    optimizer = sgd(model)
    train(model, optimizer, 5)
    train(model, torch.optim.Adam(model.parameters()), 1)
    observer.finish(None)
    assert (meta(tmp_path)["complete"], "--steps-of" in capfd.readouterr().err) == (True, True)


def test_many_steps_of_each_optimizer_in_turn_are_one_round(tmp_path, watch, model) -> None:
    observer = watch()
    policy, value = sgd(model), sgd(model)
    for _ in range(4):
        train(model, policy, 3)
        train(model, value, 3)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 3


def test_an_optimizer_that_no_longer_steps_leaves_the_rounds(watch, model, monkeypatch) -> None:
    monkeypatch.setattr(steps, "_RETIRED_AFTER", 10)
    observer = watch(active=1000)
    frozen, whole = sgd(model), sgd(model)
    train(model, frozen, 1)
    train(model, whole, 11 + 5)
    assert observer._session.steps_done == 6
    observer.finish(None)


def test_an_optimizer_without_a_backward_pass_of_its_own_ends_no_step(tmp_path, watch, model) -> None:
    observer = watch()
    dense, sparse = sgd(model), torch.optim.Adam(model.parameters())
    for _ in range(5):
        train(model, dense, 1)
        sparse.step()
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 4


def test_optimizers_without_any_backward_pass_count_as_they_step(tmp_path, watch) -> None:
    observer = watch()
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for _ in range(5):
        weight.grad = torch.ones(2)
        optimizer.step()
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 4


def test_an_optimizer_inside_another_ends_its_step_with_that(tmp_path, watch, model) -> None:
    """As ZeroRedundancyOptimizer does, which sends parameters around after the step of the one inside."""

    class Around(torch.optim.SGD):
        def step(self) -> None:
            inner.step()
            torch.zeros(3).neg_()  # what belongs to the step

    observer = watch()
    inner, outer = sgd(model), Around(model.parameters(), lr=0.01)
    train(model, outer, 6)
    observer.finish(None)
    one = ["Optimizer.step#Around.step", "Optimizer.step#SGD.step", "aten::neg_"]
    assert steps_inside(tmp_path, ("Optimizer.step", "aten::neg_")) == [one, one]


def test_an_optimizer_that_raised_inside_another_hides_no_later_step(tmp_path, watch, model) -> None:
    class Failing(torch.optim.SGD):
        def step(self) -> None:
            raise ValueError("bad luck")

    observer = watch()
    failing, optimizer = Failing(model.parameters(), lr=0.01), sgd(model)
    for _ in range(4):
        backward(model)
        with pytest.raises(ValueError, match="bad luck"):
            failing.step()
        train(model, optimizer, 1)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 3


def test_optimizers_in_hooks_of_the_backward_pass(tmp_path, watch, model, capfd) -> None:
    """The capture begins, and each step ends, after a backward pass: inside one torch's profiler breaks."""
    observer = watch()
    optimizers_of = {weight: torch.optim.SGD([weight], lr=0.01) for weight in model.parameters()}
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers_of[weight].step())
    for _ in range(7):
        backward(model)
    observer.finish(None)
    found = meta(tmp_path)
    assert (found["complete"], found["reason"], len(found["steps"])) == (True, None, 5)  # the first is only noticed
    assert found["model"]["parameters"] == 25
    assert [len(names) for names in steps_inside(tmp_path, ("Optimizer.step",))] == [4, 4]
    assert "callback" not in capfd.readouterr().err.lower()


def test_a_backward_pass_inside_another_is_none_of_its_own(tmp_path, watch, model) -> None:
    """As activation checkpoints with `use_reentrant=True` make one."""
    observer = watch()
    optimizers_of = {weight: torch.optim.SGD([weight], lr=0.01) for weight in model.parameters()}
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers_of[weight].step())
    for _ in range(7):
        inputs = torch.ones(2, 4, requires_grad=True)
        checkpoint.checkpoint(model, inputs, use_reentrant=True).sum().backward()
    observer.finish(None)
    assert (meta(tmp_path)["complete"], len(meta(tmp_path)["steps"])) == (True, 5)


def test_a_step_of_so_many_optimizer_steps(tmp_path, watch, model) -> None:
    observer = watch(steps_of=3)
    train(model, sgd(model), 3 * 5)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 4
    assert [len(names) for names in steps_inside(tmp_path, ("Optimizer.step",))] == [3, 3]


def test_a_function_that_ends_steps_is_the_only_one_that_does(tmp_path, watch, model) -> None:
    observer = watch(step_on="train_step")
    optimizer = sgd(model)
    for _ in range(5):
        train(model, optimizer, 3)
        observer.end_step()
    observer.finish(None)
    found = meta(tmp_path)
    assert (len(found["steps"]), found["model"]["parameters"]) == (4, 25)


def test_a_script_may_end_steps_itself(tmp_path, watch, model) -> None:
    observer = watch()
    optimizer = sgd(model)
    for _ in range(5):
        train(model, optimizer, 1)
        commtrace.step()
        train(model, optimizer, 2)
    observer.finish(None)
    commtrace.step()
    assert len(meta(tmp_path)["steps"]) == 4


@pytest.mark.parametrize("counts", [True, False])
def test_the_step_of_deepspeeds_engine(tmp_path, watch, model, counts, monkeypatch) -> None:
    """A stand-in for DeepSpeed: micro-batches, a step per group, and one that an overflow skips."""

    class DeepSpeedEngine:
        def __init__(self) -> None:
            self.micro_steps = 0
            if counts:
                self.global_steps = 0

        def step(self) -> None:
            self.micro_steps += 1
            if self.micro_steps % 2:
                return
            if self.micro_steps != 10 or not counts:
                optimizer.step()
                optimizer.step()
            torch.zeros(3).neg_()  # what follows: parameters go around
            if counts:
                self.global_steps += 1

    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    observer = watch()
    optimizer, engine = sgd(model), DeepSpeedEngine()
    for _ in range(2 * 6):
        backward(model)
        engine.step()
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 5
    assert [names[-1] for names in steps_inside(tmp_path, ("Optimizer.step", "aten::neg_"))] == ["aten::neg_"] * 2
    assert "framework" not in DeepSpeedEngine.step.__qualname__


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_batch_of_lightning_is_a_step(tmp_path, watch, model, package, monkeypatch) -> None:
    """A stand-in for its loop: a batch whose `training_step` steps two optimizers, and every third one steps none."""

    class _TrainingEpochLoop:
        def advance(self, batch: int) -> None:
            if batch % 3 == 2:
                return
            for optimizer in (generator, discriminator):
                train(model, optimizer, 1)

    module = ModuleType(f"{package}.loops.training_epoch_loop")
    module._TrainingEpochLoop = _TrainingEpochLoop
    monkeypatch.setitem(sys.modules, module.__name__, module)
    observer = watch()
    generator, discriminator, loop = sgd(model), torch.optim.Adam(model.parameters()), _TrainingEpochLoop()
    for batch in range(8):
        loop.advance(batch)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 5
    assert steps_inside(tmp_path, ("Optimizer.step",)) == [["Optimizer.step#SGD.step", "Optimizer.step#Adam.step"]] * 2


def test_when_the_first_optimizer_is_gone_the_next_one_counts(tmp_path, watch, model) -> None:
    observer = watch()
    train(model, sgd(model), 2)
    train(model, sgd(model), 2)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 3


def test_a_step_that_a_scaler_skips_is_a_step(tmp_path, watch, model) -> None:
    observer = watch()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1.0)
    weights = model[0].weight.detach().clone()
    for step in range(5):
        loss = model(torch.ones(2, 4)).sum() * (float("inf") if step in (0, 2) else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weights, model[0].weight) == (step == 0)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 4


def test_a_closure_is_called_often_and_is_one_step(tmp_path, watch, model) -> None:
    observer = watch()
    optimizer, calls = torch.optim.LBFGS(model.parameters(), max_iter=3), []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    observer.finish(None)
    assert len(meta(tmp_path)["steps"]) == 2
    assert len(calls) > 3


def test_an_optimizer_of_loose_tensors(tmp_path, watch) -> None:
    observer = watch()
    weights = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights])
    for _ in range(3):
        weights.sum().backward()
        optimizer.step()
    observer.finish(None)
    assert meta(tmp_path)["model"] == {"name": None, "parameters": 6, "bytes": 48, "buffer_bytes": None}


def test_nothing_of_ours_is_left_when_the_script_is_over(watch, model) -> None:
    def of_torch() -> tuple[object, ...]:
        hooks = len(optimizers._global_optimizer_post_hooks)
        engine = vars(torch.autograd.Variable)["_execution_engine"]
        ours = torch.amp.GradScaler.step, torch.autograd.profiler.profile._prepare_trace, engine, list(sys.meta_path)
        return *ours, torch.autograd.profiler.profile.__exit__, hooks

    before, term = of_torch(), signal.getsignal(signal.SIGTERM)
    observer = watch()
    optimizer = sgd(model)
    train(model, optimizer, 4)
    assert signal.getsignal(signal.SIGTERM) != term
    train(model, optimizer, UNTIL_OVER)
    assert signal.getsignal(signal.SIGTERM) == term
    assert of_torch()[-1] == before[-1] + 1  # steps are counted, for captures on demand
    observer.finish(None)
    assert of_torch() == before
    os.kill(os.getpid(), signal.SIGUSR2)  # a request that comes too late ends nothing


def test_the_model_and_its_optimizer_are_not_kept(watch, model) -> None:
    watch()
    optimizer = sgd(model)
    train(model, optimizer, 3)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None


def own_profiler(**options) -> profile:
    return profile(activities=[ProfilerActivity.CPU], **options)


def names(profiler: profile) -> set[str]:
    return {event.name for event in profiler.events()}


@pytest.fixture
def cuda_graph(monkeypatch):
    """A stand-in for a script on CUDA: returns what begins and ends the capture of a graph; events must not be used."""
    capturing = []

    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("an event is recorded while a graph is captured")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    monkeypatch.setattr(torch.cuda, "Event", touched)
    return capturing


def test_a_step_that_goes_into_a_cuda_graph_is_none(tmp_path, watch, model, cuda_graph, capfd) -> None:
    observer = watch(active=4)
    optimizer = sgd(model)
    cuda_graph.append("the first step opens no capture in here")
    train(model, optimizer, 1)
    assert list(tmp_path.iterdir()) == []
    cuda_graph.clear()
    train(model, optimizer, 3)
    cuda_graph.append("now")
    train(model, optimizer, 5)
    cuda_graph.clear()
    observer.finish(None)
    found = meta(tmp_path)
    assert len(found["steps"]) == 2
    assert (found["complete"], found["reason"].partition(",")[0]) == (
        False, "the optimizer steps inside a CUDA graph"
    )  # fmt: skip
    assert "--whole-run" in capfd.readouterr().err


@pytest.mark.slow
def test_the_whole_run_does_not_stop_inside_a_cuda_graph(tmp_path, watch, model, cuda_graph) -> None:
    before = signal.getsignal(signal.SIGURG)
    watch(limits=Limits(seconds=0.1))
    cuda_graph.append("now")
    time.sleep(0.6)
    assert meta(tmp_path)["traces"] == []
    cuda_graph.clear()
    until = time.monotonic() + 20
    while signal.getsignal(signal.SIGURG) != before and time.monotonic() < until:
        time.sleep(0.005)
    assert len(meta(tmp_path)["traces"]) == 1


@pytest.mark.parametrize(
    ("used", "places", "expected"),
    [
        (True, ["cpu", "cpu"], "cuda:2"),  # offloaded
        (True, ["cpu", "cuda:1"], "cuda:1"),  # embeddings on the CPU
        (False, ["cpu"], "cpu"),
    ],
)
def test_the_gpu_is_recorded_wherever_the_first_parameter_is(monkeypatch, used, places, expected) -> None:
    """With a stand-in for CUDA: parameters that only say where they are."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    held = [SimpleNamespace(device=torch.device(place)) for place in places]
    optimizer = SimpleNamespace(param_groups=[{"params": held[:1]}, {"params": held[1:]}])
    assert str(watched_model.trained_on(optimizer)) == expected


def test_a_profiler_that_runs_already_goes_first(tmp_path, watch, model, capfd) -> None:
    observer = watch()
    with own_profiler() as theirs:
        train(model, sgd(model), UNTIL_OVER)
    observer.finish(None)
    assert "aten::addmm" in names(theirs)
    assert not any(name.startswith("ProfilerStep") for name in names(theirs))
    assert (meta(tmp_path)["complete"], meta(tmp_path)["traces"]) == (False, [])
    assert "a profiler of its own, which was running in step 0" in meta(tmp_path)["reason"]
    assert capfd.readouterr().err.count("a profiler of the script's own was running") == 1


def test_a_profiler_that_ends_before_ours_begins_takes_nothing_away(tmp_path, watch, model) -> None:
    watch(wait=3)
    optimizer = sgd(model)
    with own_profiler():
        train(model, optimizer, 3)
    train(model, optimizer, UNTIL_OVER)
    assert meta(tmp_path)["complete"] is True
    assert len(meta(tmp_path)["traces"]) == 1


def test_a_profiler_that_starts_inside_the_traced_steps_goes_first(tmp_path, watch, model) -> None:
    observer = watch(active=3, repeat=2)
    optimizer = sgd(model)
    train(model, optimizer, 1 + 3)
    with own_profiler() as theirs:
        train(model, optimizer, 1)
    train(model, optimizer, UNTIL_OVER)
    observer.finish(None)
    assert {"aten::addmm", "Optimizer.step#SGD.step"} <= names(theirs)
    found = meta(tmp_path)
    first, second = (trace(tmp_path / "run" / name) for name in found["traces"])
    assert traced_steps(first) == [2, 3]
    assert traced_steps(second) == [7, 8, 9]
    assert "a profiler of its own, which started in step 3" in found["reason"]


def test_a_profiler_with_a_schedule_between_ours(tmp_path, watch, model) -> None:
    watch(wait=4)
    optimizer, file = sgd(model), tmp_path / "theirs.json"
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with own_profiler(schedule=schedule, on_trace_ready=lambda done: done.export_chrome_trace(str(file))) as theirs:
        for _ in range(4):
            train(model, optimizer, 1)
            theirs.step()
    train(model, optimizer, UNTIL_OVER)
    content = json.loads(file.read_text())
    assert any(event.get("name") == "aten::addmm" for event in content["traceEvents"])
    assert traced_steps(content) == [2]
    assert meta(tmp_path)["complete"] is True
    assert traced_steps(trace(tmp_path / "run" / meta(tmp_path)["traces"][0])) == [5, 6]


@pytest.mark.parametrize("wait", [0, 1])
def test_a_profiler_that_warms_up_as_ours_begins_to_record_early_steps(tmp_path, watch, model, wait) -> None:
    """Torch does not say yet that it is on; it is its usual place, at the beginning of a training."""
    watch(wait=9, active=2, early_from=2)
    optimizer, theirs_traced = sgd(model), []
    schedule = torch.profiler.schedule(wait=wait, warmup=2, active=3, repeat=1)
    with own_profiler(schedule=schedule, on_trace_ready=lambda done: theirs_traced.append(names(done))) as theirs:
        for _ in range(8):
            train(model, optimizer, 1)
            theirs.step()
    train(model, optimizer, UNTIL_OVER)
    (found,) = theirs_traced
    assert {"aten::addmm", "Optimizer.step#SGD.step"} <= found
    assert (meta(tmp_path)["complete"], meta(tmp_path)["reason"]) == (True, None)
    assert traced_steps(trace(tmp_path / "run" / meta(tmp_path)["traces"][0])) == [10, 11]


def test_a_run_directory_in_use_does_not_stop_the_script(tmp_path, watch, model, capfd) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs.txt").write_text("mine")
    watch()
    train(model, sgd(model), 3)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["theirs.txt"]
    err = capfd.readouterr().err
    assert "found files in it; choose another name; the script goes on" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("keeping", [TRACES_ONLY, Keeping("recording"), Keeping(analyse=True)])
def test_a_disk_that_becomes_full_is_said_once_when_the_script_is_over(
    tmp_path, watch, model, keeping, capfd, monkeypatch
) -> None:
    observer = watch(keeping=keeping)
    optimizer = sgd(model)
    train(model, optimizer, 3)
    capfd.readouterr()

    def full(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write", full)
    train(model, optimizer, UNTIL_OVER)
    assert capfd.readouterr().err == ""
    observer.finish(None)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"commtrace: error: rank 0: no trace: {tmp_path}/run/")
    assert line.endswith("0.0000.pt.trace.json.gz: cannot be written: No space left on device")
    assert leftovers(tmp_path / "run") == []


def test_what_was_traced_before_a_disk_is_full_is_counted(tmp_path, watch, model, capfd, monkeypatch) -> None:
    observer = watch(repeat=2)
    optimizer = sgd(model)
    train(model, optimizer, 6)
    monkeypatch.setattr(disk, "write", lambda *given: (_ for _ in ()).throw(OSError(27, "File too large")))
    train(model, optimizer, UNTIL_OVER)
    observer.finish(None)
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith(f"commtrace: error: rank 0: 1 trace in {tmp_path}/run, but incomplete: ")


def test_a_disk_that_is_full_from_the_beginning_is_said_once(tmp_path, watch, model, capfd, monkeypatch) -> None:
    monkeypatch.setattr(disk, "write", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    observer = watch()
    train(model, sgd(model), UNTIL_OVER)
    observer.finish(None)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"commtrace: error: rank 0: no trace: {tmp_path}/run/")


def test_a_forked_child_is_left_alone(tmp_path, watch, model) -> None:
    observer = watch()
    optimizer = sgd(model)
    train(model, optimizer, 3)
    child = os.fork()
    if not child:
        code = 1
        try:
            train(model, optimizer, UNTIL_OVER)
            observer.finish(None)
            code = int(bool(optimizers._global_optimizer_post_hooks))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert meta(tmp_path)["steps"] == []  # nobody has written since the capture began
    train(model, optimizer, UNTIL_OVER)
    assert meta(tmp_path)["complete"] is True


def test_without_an_optimizer_nothing_is_captured_and_it_says_so(tmp_path, watch, model, capfd) -> None:
    watch().finish(None)
    assert "no optimizer stepped in this process; --whole-run" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def trainer() -> None:
    """Runs in a process of its own."""


def test_processes_that_are_not_captured_are_named_with_what_to_do(watch, capfd) -> None:
    observer = watch()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=trainer), context.Process(target=trainer)]
    processes += [
        context.Process(target=trainer, daemon=True),
        context.Process(target=torch.get_num_threads),
    ]  # helpers
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    observer.finish(None)
    assert capfd.readouterr().err == (
        "commtrace: nothing was captured: this process trained nothing, and the 2 processes that it started with "
        "multiprocessing.Process (trainer) are not captured: start them with torch.multiprocessing.spawn(trainer, "
        "nprocs=2), or with torchrun\n"
    )


def test_the_whole_run(tmp_path, watch, model) -> None:
    observer = watch(limits=Limits())
    model(torch.ones(2, 4))
    observer.finish(None)
    found = meta(tmp_path)
    assert (found["complete"], [step["phase"] for step in found["steps"]]) == (True, ["active"])
    content = trace(tmp_path / "run" / found["traces"][0])
    assert traced_steps(content) == [0]
    assert any(event.get("name") == "aten::addmm" for event in content["traceEvents"])


@pytest.mark.slow_cases("limits1")
@pytest.mark.parametrize("limits", [Limits(seconds=0.3), Limits(memory_gb=1.0)])
def test_the_whole_run_stops_at_a_limit(tmp_path, watch, model, limits, monkeypatch, capfd) -> None:
    if limits.memory_gb == 1.0:
        sizes = iter([int(1e9), int(1.5e9)])
        monkeypatch.setattr(limit_watchdog, "_resident_bytes", lambda: next(sizes, int(2.1e9)))
    before = signal.getsignal(signal.SIGURG)
    watch(limits=limits)
    until = time.monotonic() + 20
    while signal.getsignal(signal.SIGURG) != before and time.monotonic() < until:
        model(torch.ones(2, 4))
        time.sleep(0.005)
    found = meta(tmp_path)
    assert found["complete"] is False
    assert found["reason"].startswith("stopped early, because ")
    assert ("0.3 s have passed" if limits.memory_gb != 1.0 else "grown by 1 GB") in found["reason"]
    assert traced_steps(trace(tmp_path / "run" / found["traces"][0])) == [0]
    assert "tracing stops here" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("child", "limits", "group", "folder"),
    [
        (None, None, False, "run"),
        (1, None, False, "run-1"),
        (1, None, True, "run"),
        (1, Limits(), True, "run-spawned"),
    ],
)
def test_captures_of_one_command_have_folders_of_their_own(
    tmp_path, watch, model, child, limits, group, folder
) -> None:
    observer = watch(limits=limits, child=child)
    if group:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(model, sgd(model), 1)
        assert [path.name for path in tmp_path.iterdir()] == [folder]
    finally:
        observer.finish(None)
        if group:
            dist.destroy_process_group()


def test_the_reason_is_how_the_script_ended(tmp_path, watch, model) -> None:
    observer = watch()
    train(model, sgd(model), 4)
    observer.finish(SystemExit(3))
    assert (meta(tmp_path)["complete"], meta(tmp_path)["reason"]) == (
        False,
        "SystemExit: 3 (after 3 of 4 scheduled steps)",
    )
    assert traced_steps(trace(tmp_path / "run" / meta(tmp_path)["traces"][0])) == [2, 3]


@pytest.mark.slow
def test_packing_keeps_no_step_of_the_script_waiting(watch, model, tmp_path, monkeypatch) -> None:
    """Not even the one in which the capture ends: what is left to do is done when the script is over."""
    go = threading.Event()

    def packed(*arguments: object) -> aside.Printed:
        go.wait(60)
        return aside.run_aside(*arguments)

    monkeypatch.setattr(packing, "run_aside", packed)
    observer = watch(keeping=Keeping("recording"))
    train(model, sgd(model), UNTIL_OVER)
    (trace_file,) = metas(tmp_path / "run")[0]["traces"]
    assert metas(tmp_path / "run")[0]["complete"]
    assert (tmp_path / "run" / trace_file).is_file()
    go.set()
    observer.finish(None)
    assert metas(tmp_path / "run")[0]["traces"] == [trace_file.replace(".json.gz", ".ctrace")]
    assert not (tmp_path / "run" / trace_file).exists()


@pytest.mark.slow
def test_ranks_gather_before_their_group_goes_and_only_then(watch, model, tmp_path, monkeypatch) -> None:
    """Under whatever name the script destroys it: held until the script ends, its store would be in the way."""
    gathered = []
    monkeypatch.setattr(
        conclusion.Conclusion, "gather", lambda *given, together: gathered.append((dist.is_initialized(), together))
    )
    monkeypatch.setattr(conclusion, "run_aside", lambda *given: aside.Printed(why="not here"))
    init, destroy = dist.init_process_group, dist.destroy_process_group
    observer = watch(keeping=Keeping(analyse=True))
    init("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(model, sgd(model), UNTIL_OVER)
        assert gathered == []
        subgroup = dist.new_group([0])
        destroy(subgroup)
        assert gathered == []
    finally:
        destroy()
    assert gathered == [(True, True)]
    init("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy()
    observer.finish(None)
    assert gathered == [(True, True)]


@pytest.mark.slow
def test_once_a_capture_is_over_signals_still_let_it_come_to_its_verdict(watch, model, tmp_path, monkeypatch) -> None:
    said = []
    monkeypatch.setattr(conclusion.Conclusion, "analyse", lambda self, patience: said.append(patience.received()))
    observer = watch(keeping=Keeping(analyse=True))
    train(model, sgd(model), UNTIL_OVER)
    with pytest.raises(SystemExit) as stopped:
        signal.raise_signal(signal.SIGTERM)
    observer.finish(stopped.value)
    assert said == [signal.SIGTERM]
    assert observer.stopped_by == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_a_script_that_catches_ctrl_c_and_ends_well_comes_to_its_verdict(watch, model, monkeypatch) -> None:
    """Training by hand often ends so; another Ctrl-C would still cut the verdict short."""
    said = []
    monkeypatch.setattr(conclusion.Conclusion, "analyse", lambda self, patience: said.append(patience.received()))
    observer = watch(keeping=Keeping(analyse=True))
    train(model, sgd(model), UNTIL_OVER)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    observer.finish(None)
    assert said == [None]


@pytest.mark.slow
def test_a_signal_while_a_capture_ends_takes_nothing_from_its_verdict(watch, model, monkeypatch, capfd) -> None:
    """A launcher sends SIGTERM within milliseconds of the error by which a rank learns that its peer died."""
    said = []

    def closed(self, error) -> None:
        signal.raise_signal(signal.SIGTERM)
        close(self, error)

    close = Session._close
    monkeypatch.setattr(Session, "_close", closed)
    monkeypatch.setattr(conclusion.Conclusion, "analyse", lambda self, patience: said.append(patience.received()))
    observer = watch(keeping=Keeping(analyse=True))
    train(model, sgd(model), 8)  # of 4 and those that trail
    with pytest.raises(SystemExit) as stopped:
        observer.finish(RuntimeError("Connection closed by peer"))
    assert stopped.value.code == 128 + signal.SIGTERM
    assert said == [signal.SIGTERM]
    assert "done: 1 rank traced" in capfd.readouterr().err
    assert observer.stopped_by == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.quick_cases("keeping0")
@pytest.mark.parametrize("keeping", [TRACES_ONLY, Keeping("recording"), Keeping(analyse=True)])
def test_signals_are_the_scripts_own_again_once_nothing_follows(watch, model, monkeypatch, keeping) -> None:
    monkeypatch.setattr(conclusion, "run_aside", lambda *given: aside.Printed(why="not here"))
    observer = watch(keeping=keeping)
    train(model, sgd(model), UNTIL_OVER)
    assert (signal.getsignal(signal.SIGTERM) is signal.SIG_DFL) == (keeping == TRACES_ONLY)
    observer.finish(None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_options_survive_the_way_to_processes_that_a_script_starts(tmp_path) -> None:
    config = RunConfig(Target("a.py"), tmp_path, Schedule(1, 1, 1), keeping=Keeping("both", True, 5, 0.5))
    assert RunConfig.from_json(config.as_json()) == config
