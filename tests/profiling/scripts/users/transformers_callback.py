"""The Trainer of Hugging Face, with the callback: `transformers_callback.py FOLDER {with,without,fails} [OUT]`.

LOGGED_TO names what it reports to, with spaces between.
"""

import os
import sys

import torchvision_here  # isort: skip  # noqa: F401
import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 24


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int):
        return {"x": torch.full((4,), index / 256), "labels": torch.ones(1)}


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 12:
            raise RuntimeError("of the script")


if __name__ == "__main__":
    folder, how, *out = sys.argv[1:]
    callbacks = []
    if how != "without":
        from commtrace.integrations.transformers import CommtraceCallback

        callbacks = [CommtraceCallback(*out)]
    if how == "fails":
        callbacks.append(Fails())
    args = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        logging_steps=1, report_to=os.environ.get("LOGGED_TO", "").split(), save_strategy="no", use_cpu=True,
        disable_tqdm=True, seed=3,
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=args, train_dataset=Rows(), callbacks=callbacks)
    trainer.train()
    if dist.get_rank() == 0:
        print("losses", [row["loss"] for row in trainer.state.log_history if "loss" in row])
    dist.destroy_process_group()  # torch asks for it: threads of gloo that are left may abort a process that ends
