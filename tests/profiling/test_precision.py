"""`train --amp` and `--channels-last`: what they change, what they leave alone, and which modes refuse them."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commtrace.cli import main
from commtrace.profiling.modes import MODES
from commtrace.profiling.train import loop
from commtrace.profiling.train.learning.scoring import ScoredLoss
from commtrace.profiling.train.learning.trainee import Trainee, train_step

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("amp", "computed"), [("bf16", torch.bfloat16), (None, torch.float32)])
def test_only_the_forward_pass_is_cast(amp, computed) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))
    seen: dict[str, Any] = {}

    def in_forward(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen["forward"] = output.dtype
        output.register_hook(lambda _: seen.update(backward=torch.is_autocast_enabled("cpu")))

    model[0].register_forward_hook(in_forward)
    trainee = Trainee(MODES["single"], model, ScoredLoss(), torch.optim.SGD(model.parameters(), 0.1), CPU, amp)
    loss = train_step(trainee, (torch.randn(2, 3, 8, 8), torch.tensor([1, 2])))
    assert seen == {"forward": computed, "backward": False}
    assert loss is not None
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_from_the_command_line(tmp_path, monkeypatch, asked) -> None:
    """Every convolution, though only weights are reordered."""
    outputs: list[Tensor] = []

    def step(trainee: Trainee, batch: tuple[Tensor, Tensor]) -> Tensor | None:
        convolutions = [m for m in trainee.model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
        hooks = [m.register_forward_hook(lambda _, given, output: outputs.append(output)) for m in convolutions]
        try:
            return train_step(trainee, batch)
        finally:
            for hook in hooks:
                hook.remove()

    monkeypatch.setattr(loop, "train_step", step)
    options = ["--parallel", "single", "--device", "cpu", "--batch-size", "2", "--wait", "0", "--active", "1"]
    options += ["--amp", "bf16", "--channels-last"] if asked else []
    assert main(["train", *options, "--steps", "2", "--out", str(tmp_path), "--run-name", "run"]) == 0
    is_last = {output.is_contiguous(memory_format=torch.channels_last) for output in outputs if output.shape[-1] > 1}
    assert is_last == {asked}
    assert {output.dtype for output in outputs} == {torch.bfloat16 if asked else torch.float32}
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["amp"], config["channels_last"]) == (("bf16", True) if asked else (None, False))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--parallel", "pipeline", "--amp", "bf16"], "--parallel pipeline --amp: stages exchange contiguous"),
        (["--parallel", "pipeline", "--channels-last"], "--parallel pipeline --channels-last: stages exchange"),
        (["--parallel", "fsdp", "--channels-last"], "--parallel fsdp --channels-last: FSDP2 shards contiguous"),
        (["--parallel", "dp", "--amp", "bf16"], "--parallel dp --amp: the threads of nn.DataParallel cast to float16"),
        (["--parallel", "dp", "--channels-last"], "--parallel dp --channels-last: nn.DataParallel copies weights"),
    ],
)
def test_modes_that_cannot_refuse(tmp_path, capsys, options, why) -> None:
    assert main(["train", *options, "--out", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
