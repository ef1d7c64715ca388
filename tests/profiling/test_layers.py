"""`commtrace layers`: memory against formulas, models layer by layer, the swapped VGG-16, and how it ends."""

import csv
import io
import json
import math
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import begun, leftovers, python

from commtrace.cli import main
from commtrace.profiling.layers import measure
from commtrace.profiling.layers.memory_use import memory_use, saved_bytes
from commtrace.profiling.layers.ratios import time_ratio
from commtrace.profiling.layers.subjects import used
from commtrace.profiling.workloads.models import BLOCKS, MODELS
from commtrace.profiling.workloads.stacks import LAYERS, REPORT_BATCH_SIZE, activation_bytes

QUICK = ["--device", "cpu", "--warmup", "1", "--iters", "3"]
CPU = torch.device("cpu")


def written(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "layers.json").read_text())
    return content


def by_name(folder: Path) -> dict[str, dict[str, Any]]:
    return {one["layer"]: one for one in written(folder)["layers"]}


# --- the four single layers -------------------------------------------------------------------------------------------


def test_formulas_with_the_reports_sizes() -> None:
    images, pooled = 256 * 3 * 224 * 224, 256 * 3 * 112 * 112
    expected = {
        "relu": images * 4,  # the output: 154 MB
        "maxpool": pooled * 4 + pooled * 8,  # the output, and where each maximum was: 116 MB
        "conv": 256 * 128 * 224 * 224 * 4,  # 6.6 GB
        "linear": 256 * 4096 * 4,  # 4.2 MB
    }
    for name, layer in LAYERS.items():
        with torch.device("meta"):
            made = layer.make(1.0)
            shape = layer.input_shape(REPORT_BATCH_SIZE, 1.0)
            assert made(torch.empty(shape)).shape[0] == 256
        assert activation_bytes(made, shape) == expected.pop(name)
    assert expected == {}


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> tuple[dict[str, dict[str, Any]], str]:
    """The single layers with batches of 8 and a quarter of the width, and what is on stdout."""
    out, shown = tmp_path_factory.mktemp("layers"), io.StringIO()
    options = ["--layer", "all", "--batch-size", "8", "--scale", "0.25", *QUICK]
    with redirect_stdout(shown):
        assert main(["layers", *options, "--out", str(out), "--run-name", "four"]) == 0
    assert leftovers(out / "four") == []
    return by_name(out / "four"), shown.getvalue()


IMAGES, PIXELS, FEATURES, OUTPUTS = 8 * 3 * 56 * 56, 56 * 56, 6272, 1024
WEIGHTS = FEATURES * OUTPUTS + OUTPUTS


@pytest.mark.slow_cases("relu-75264-75264-75264")
@pytest.mark.parametrize(
    ("name", "saved", "activation", "gradients"),
    [
        ("relu", IMAGES, IMAGES, IMAGES),
        ("maxpool", IMAGES + IMAGES / 4 * 2, IMAGES / 4 * 3, IMAGES),
        ("conv", IMAGES, 8 * 128 * PIXELS, IMAGES + 3 * 128 * 9 + 128),
        ("linear", 8 * FEATURES, 8 * OUTPUTS, 8 * FEATURES + WEIGHTS),
    ],
)
def test_memory_is_within_5_percent_of_the_formulas(four, name, saved, activation, gradients) -> None:
    # In floats of 4 bytes; an index counts as 2.
    row = four[0][name]
    assert row["saved_bytes"] == pytest.approx(4 * saved, rel=0.05)
    assert row["activation_bytes"] == pytest.approx(4 * activation, rel=0.05)
    assert row["formula_activation_bytes"] == 4 * activation
    peak = pytest.approx(4 * (activation + gradients), rel=0.05)
    # A convolution on CPU also holds copies of its tensors in the layout that it computes in.
    assert row["peak_bytes"] > 3.8 * (activation + gradients) if name == "conv" else row["peak_bytes"] == peak


def test_times_are_of_every_repetition(four) -> None:
    for row in four[0].values():
        for part in ("forward", "backward"):
            times = row[f"{part}_times_ns"]
            assert len(times) == 3
            assert min(times) > 0
            assert row[f"{part}_mean_ns"] == pytest.approx(sum(times) / 3)
            mean = sum(times) / 3
            assert row[f"{part}_spread_ns"] == pytest.approx(math.sqrt(sum((one - mean) ** 2 for one in times) / 2))


def test_power_is_na_with_the_reason_where_there_is_no_gpu(four) -> None:
    rows, out = four
    reason = "NVML knows NVIDIA GPUs only: not a CUDA device"
    assert {(row["power_w"], row["power_reason"]) for row in rows.values()} == {(None, reason)}
    assert out.splitlines()[-1] == f"power NA: {reason}"
    assert all(line.endswith("NA") for line in out.splitlines()[2:6])


def test_the_table_has_units(four) -> None:
    out = four[1]
    assert "forward (ms)" in out.splitlines()[0]
    assert "activation (MB)" in out.splitlines()[0]
    row = next(line for line in out.splitlines() if line.startswith("maxpool"))
    assert "8x3x56x56" in row
    assert "0.226" in row.split()  # 75264 / 4 outputs of 12 bytes


@pytest.mark.parametrize("output_format", ["csv", "markdown", "json", "latex"])
def test_every_format_has_every_layer(tmp_path, capsys, output_format) -> None:
    options = ["--layer", "relu", "--layer", "maxpool", "--batch-size", "2", "--scale", "0.125", *QUICK]
    assert main(["layers", *options, "--out", str(tmp_path), "--run-name", "two", "-f", output_format]) == 0
    out, rows = capsys.readouterr().out, by_name(tmp_path / "two")
    if output_format == "json":
        assert json.loads(out) == written(tmp_path / "two")
    elif output_format == "csv":
        for row in csv.DictReader(io.StringIO(out)):
            entry = rows.pop(row["layer"])
            assert row["input_shape"] == "x".join(map(str, entry["input_shape"]))
            assert float(row["forward_mean_ns"]) == entry["forward_mean_ns"]
            assert (int(row["saved_bytes"]), row["power_w"]) == (entry["saved_bytes"], "")
            assert row["power_reason"] == entry["power_reason"]
        assert not rows
    elif output_format == "markdown":
        head, rule, *body = out.splitlines()
        assert head.startswith("| layer | kind | input | forward (ms) |")
        assert rule.startswith("|---|---|---|---:|")
        assert [line.split(" | ")[0] for line in body[:2]] == ["| relu", "| maxpool"]
    else:
        assert out.startswith(
            "% needs \\usepackage{booktabs}\n\\begin{tabular}{lllrrrrrrrrrr}\n\\toprule\nlayer & kind &"
        )
        assert "\nmaxpool & MaxPool2d(kernel\\_size=2" in out
        assert "power NA: NVML knows NVIDIA GPUs only" in out.rpartition("\\end{tabular}")[2]


# --- memory, by itself -----------------------------------------------------------------------------------------------


def test_memory_in_place_is_none() -> None:
    source = torch.randn(1000, requires_grad=True)
    x = source.clone()
    used_ = memory_use(lambda: torch.relu_(x), lambda y: None, CPU)
    assert (used_.activation_bytes, used_.peak_bytes) == (0, 0)


def test_peak_counts_what_is_gone_again() -> None:
    def forward() -> torch.Tensor:
        return torch.zeros(1000).repeat(10)[:1].clone()

    used_ = memory_use(forward, lambda y: None, CPU)
    assert used_.activation_bytes < 1000
    assert 44_000 <= used_.peak_bytes < 50_000


def test_profiles_after_each_other_begin_at_nothing() -> None:
    held = []
    for _ in range(2):
        found = memory_use(lambda: held.append(torch.zeros(10_000)) or held[-1], lambda y: None, CPU)
        assert found.activation_bytes == 40_000


def test_saved_memory_counts_once_and_without_parameters() -> None:
    x = torch.randn(4, 10, requires_grad=True)
    twice = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3))
    # The input, and ReLU's output, which ReLU and the second Linear both save.
    assert saved_bytes(lambda: twice(x), twice) == 2 * 4 * 10 * 4


# --- models ----------------------------------------------------------------------------------------------------------


class Residual(torch.nn.Module):
    """A model in small as ResNets are: a ReLU in place that is called twice, a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.relu = torch.nn.ReLU(inplace=True)
        self.pool = torch.nn.MaxPool2d(2)
        self.flat = torch.nn.Flatten()
        self.fc = torch.nn.Linear(16 * 8 * 8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem(images))
        y = self.conv(x)
        y += x
        y = self.fc(self.flat(self.pool(self.relu(y))))
        assert isinstance(y, torch.Tensor)
        return y


def test_every_layer_of_a_model_and_the_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(MODELS, "resnet18", Residual)
    options = ["--batch-size", "2", "--image-size", "16", "--device", "cpu", "--warmup", "0", "--iters", "1"]
    assert main(["layers", "--model", "resnet18", *options, "--out", str(tmp_path), "--run-name", "run"]) == 0
    found = written(tmp_path / "run")
    whole, *layers = found["layers"]
    assert (found["complete"], whole["layer"], whole["kind"]) == (True, "(model)", "Residual")
    assert [one["layer"] for one in layers] == ["stem", "relu", "conv", "relu", "pool", "flat", "fc"]
    of_modules = {one["layer"]: one["parameter_bytes"] for one in layers}
    assert whole["parameter_bytes"] == sum(of_modules.values()) == 4 * (28 * 16 + 145 * 16 + 1025 * 10)
    for one in layers:
        assert one["activation_bytes"] == pytest.approx(one["formula_activation_bytes"], rel=0.05)
    # What the layers leave behind is what the model does: its shortcut adds in place.
    assert sum(one["activation_bytes"] for one in layers) == pytest.approx(whole["activation_bytes"], rel=0.05)


def on_meta(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return MODELS[name]()


def test_layers_get_the_shapes_they_get_in_training() -> None:
    found = used(on_meta("resnet18"), (3, 3, 32, 32))
    assert found[:2] == [("conv1", (3, 3, 32, 32), False), ("bn1", (3, 64, 32, 32), True)]
    assert found[-1] == ("fc", (3, 512), True)


@pytest.mark.slow
def test_exhausted_memory_is_a_reason_and_the_next_layer_goes_on(tmp_path) -> None:
    # 51 MB of images: Conv2d's output would be 2.2 GB. A weight of 103 MB fits.
    options = ["--layer", "conv", "--layer", "linear", "--batch-size", "340", "--memory-limit", "1500MB", *QUICK]
    scale = ["--scale", "0.5", "--iters", "1", "--warmup", "0"]
    done = python("-m", "commtrace", "layers", *options, *scale, "--out", tmp_path, "--run-name", "run")
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["layer   1/2  conv", "layer   2/2  linear", f"{tmp_path}/run/layers.json"]
    rows = by_name(tmp_path / "run")
    assert rows["conv"]["reason"].startswith("out of memory: DefaultCPUAllocator: can't allocate memory")
    assert (rows["conv"]["activation_bytes"], rows["conv"]["forward_mean_ns"]) == (None, None)
    assert rows["linear"]["activation_bytes"] == pytest.approx(340 * 2048 * 4, rel=0.05)
    assert next(line for line in done.stdout.splitlines() if line.startswith("conv")).count("NA") == 8


# --- VGG-16 with ReLU behind the pool --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> tuple[torch.nn.Module, torch.nn.Module]:
    """VGG-16's features as they are and swapped, from one seed."""
    plain, swapped = (torch.manual_seed(3) and MODELS[name]() for name in ("vgg16", "vgg16-swapped"))
    assert all(map(torch.equal, plain.parameters(), swapped.parameters()))
    return plain, swapped


@pytest.mark.slow
def test_swapped_vgg_has_every_relu_behind_the_pool(both) -> None:
    plain, swapped = ([type(layer).__name__ for layer in model.features] for model in both)
    assert "MaxPool2d ReLU" in " ".join(swapped)
    assert "ReLU MaxPool2d" not in " ".join(swapped)
    assert sorted(plain) == sorted(swapped)


@pytest.mark.slow
def test_swapped_vgg_has_the_same_outputs_and_gradients(both) -> None:
    images = torch.randn(2, 3, 64, 64)
    outputs, gradients = [], []
    for model in both:
        model.eval()  # without Dropout
        output = model(images)
        (gradient,) = torch.autograd.grad(output.square().sum(), [model.features[0].weight])
        outputs.append(output)
        gradients.append(gradient)
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)
    assert float(gradients[0].abs().max()) > 0


@pytest.mark.slow
def test_blocks_of_the_swapped_vgg_compute_what_it_does(both) -> None:
    swapped, images = both[1].eval(), torch.randn(1, 3, 32, 32)
    blocks = torch.nn.Sequential(*BLOCKS["vgg16-swapped"](swapped).values())
    with torch.no_grad():
        assert torch.equal(blocks(images), swapped(images))


@pytest.mark.slow
def test_swapped_relus_need_a_quarter_and_the_network_no_more(both) -> None:
    shape = (2, 3, 64, 64)
    behind, kept = [], []
    for name, model in zip(("vgg16", "vgg16-swapped"), both, strict=True):
        features = model.features
        pools = [place for place, layer in enumerate(features) if isinstance(layer, torch.nn.MaxPool2d)]
        step = -1 if isinstance(features[pools[0] - 1], torch.nn.ReLU) else 1
        sizes = {place: math.prod(size) * 4 for place, size, _ in used(on_meta(name).features, shape)}
        behind.append([sizes[str(place + step)] for place in pools])
        kept.append(memory_use(lambda f=features: f(torch.ones(shape)), lambda y: None, CPU).activation_bytes)
    plain, swapped = behind
    assert [size / 4 for size in plain] == swapped
    assert kept[1] <= kept[0]


# --- one model against another ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_models_take_turns_and_have_a_ratio(tmp_path, monkeypatch, capsys) -> None:
    order: list[str] = []

    def recording(name: str) -> Callable[[], torch.nn.Module]:
        def made() -> torch.nn.Module:
            model = Residual()
            model.register_forward_pre_hook(lambda *_: order.append(name))
            return model

        return made

    for name in ("vgg16", "vgg16-swapped"):
        monkeypatch.setitem(MODELS, name, recording(name))
    options = ["--model", "vgg16", "--against", "vgg16-swapped", "--batch-size", "2", "--image-size", "16"]
    how = ["--device", "cpu", "--warmup", "2", "--iters", "6", "--out", str(tmp_path), "--run-name", "run"]
    assert main(["layers", *options, *how]) == 0
    found = written(tmp_path / "run")
    first, second = found["layers"]
    assert (first["layer"], second["layer"]) == ("(vgg16)", "(vgg16-swapped)")
    turns = order[4:20]  # after a look at the shapes of both, and a first call of both
    assert turns == ["vgg16", "vgg16-swapped", "vgg16-swapped", "vgg16"] * 4
    of_both = {ratio["passes"]: ratio for ratio in found["ratios"]}
    pairs = zip(first["forward_times_ns"], second["forward_times_ns"], strict=True)
    assert of_both["forward"]["ratio"] == statistics.median(theirs / ours for ours, theirs in pairs)
    assert of_both["both"]["low"] <= of_both["both"]["ratio"] <= of_both["both"]["high"]
    assert "(vgg16-swapped) / (vgg16), backward: " in capsys.readouterr().out


@pytest.mark.parametrize(("pairs", "place"), [(6, 1), (10, 2), (20, 6), (100, 40)])
def test_the_interval_is_that_of_the_sign_test(pairs: int, place: int) -> None:
    # Places from tables of the sign test, such as Conover, Practical Nonparametric Statistics, table A3.
    ratio = time_ratio("forward", [1000] * pairs, [1001 + number for number in range(pairs)][::-1])
    assert (ratio.low, ratio.high) == (1 + place / 1000, 1 + (pairs + 1 - place) / 1000)


def test_of_few_pairs_the_interval_is_not_known() -> None:
    ratio = time_ratio("forward", [10, 10, 10, 10, 10], [11, 12, 13, 14, 15])
    assert (ratio.ratio, ratio.low, ratio.high) == (1.3, None, None)


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interrupted_it_leaves_valid_json(tmp_path) -> None:
    options = ["--model", "resnet18", "--batch-size", "8", "--iters", "1000", "--device", "cpu"]
    with begun("-m", "commtrace", "layers", *options, "--out", tmp_path, "--run-name", "run") as process:
        until = time.monotonic() + 60
        while not (tmp_path / "run" / "layers.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    found = written(tmp_path / "run")
    assert (found["complete"], found["reason"]) == (False, "interrupted by SIGINT")
    assert leftovers(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scale", "2"], "--scale 2.0: is for single layers; add --layer"),
        (["--layer", "relu", "--model", "vgg16"], "--model vgg16: is for models; leave out this option, or --layer"),
        (["--layer", "relu", "--against", "vgg16"], "--against vgg16: is for models; leave out this option"),
        (["--layer", "relu", "--image-size", "8"], "--image-size 8: is for models; leave out this option, or --layer"),
        (["--model", "vgg16", "--image-size", "16"], "vgg16 cannot be trained with such a batch: "),
        (["--image-size", "8", "--batch-size", "1"], "--image-size 8 --batch-size 1: resnet18 cannot be trained"),
        (["--layer", "gelu"], "--layer gelu: expected one of relu, maxpool, conv, linear, all"),
        (["--layer", "relu", "--scale", "0"], "--scale must be above 0, found 0.0"),
        (["--layer", "relu", "--scale", "nan"], "--scale must be above 0, found nan"),
        (["--batch-size", "0"], "--batch-size must be at least 1, found 0"),
        (["--memory-limit", "lots"], "--memory-limit lots: expected a size"),
        (["--run-name", "a/b"], "expected one folder name"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys) -> None:
    assert main(["layers", "--out", str(tmp_path), *QUICK, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys) -> None:
    assert main(["layers", "--help"]) == 0
    assert "commtrace layers --model vgg16 --against vgg16-swapped --batch-size 128" in capsys.readouterr().out


class SmallLayer:
    """A stand-in for a layer on a GPU, and for that GPU and the clocks: launches take longer than what is launched."""

    host_ns, gpu_ns = 60_000, (5_000, 9_000)

    def __init__(self, monkeypatch, *, waits: bool = False) -> None:
        self.now_ns = self.free_ns = 1_000
        self.busy_ns: float | None = 0.0
        self._waits = waits
        self.kept_busy = 0
        monkeypatch.setattr(measure, "mark", lambda device: StandInMark(self))
        monkeypatch.setattr(measure, "finish", self.finish)
        monkeypatch.setattr(measure, "keep_busy", self.keep_busy)
        monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: self.now_ns)

    def finish(self, device: object = None) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)

    def keep_busy(self, device: object, ns: float) -> None:
        self.kept_busy += 1
        self.launch(round(ns), host_ns=0)

    def launch(self, gpu_ns: int, host_ns: int = host_ns) -> None:
        self.now_ns += host_ns
        self.free_ns = max(self.free_ns, self.now_ns) + gpu_ns

    def renew(self) -> None:
        self.launch(1_000)

    def forward(self) -> None:
        self.launch(self.gpu_ns[0])
        if self._waits:
            self.finish()

    def backward(self, output: None) -> None:
        self.launch(self.gpu_ns[1])


class StandInMark:
    def __init__(self, layer: SmallLayer) -> None:
        self._layer = layer
        self.at_ns = max(layer.now_ns, layer.free_ns)

    def reached(self) -> bool:
        return self._layer.now_ns >= self.at_ns

    def ns_until(self, later: "StandInMark") -> int:
        return later.at_ns - self.at_ns


def test_a_small_layer_is_timed_without_its_launches(monkeypatch) -> None:
    layer = SmallLayer(monkeypatch)
    plan = measure.Plan(warmup=0, iters=5, power_s=0, where=torch.device("cuda", 0), uuid=None)
    assert measure._times([layer], plan) == [[layer.gpu_ns] * 5]


def test_a_layer_that_waits_for_the_gpu_does_not_keep_it_busy_for_long(monkeypatch) -> None:
    layer = SmallLayer(monkeypatch, waits=True)
    plan = measure.Plan(warmup=0, iters=5, power_s=0, where=torch.device("cuda", 0), uuid=None)
    assert [forward for forward, _ in measure._times([layer], plan)[0][1:]] == [64_000] * 4
    assert layer.kept_busy == 2


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU: would hold memory of the four single layers to the formulas, and ask NVML for power",
)
def test_four_layers_on_a_gpu(tmp_path) -> None:
    options = ["--device", "cuda", "--layer", "all", "--batch-size", "32", "--power-s", "1"]
    assert main(["layers", *options, "--out", str(tmp_path), "--run-name", "run"]) == 0
    for row in written(tmp_path / "run")["layers"]:
        assert row["activation_bytes"] == pytest.approx(row["formula_activation_bytes"], rel=0.05)
        assert row["power_w"] is None or row["power_w"] > 1
        assert (row["power_w"] is None) == (row["power_reason"] is not None)
