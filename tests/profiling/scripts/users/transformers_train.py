"""The Trainer of Hugging Face, with a model of its own: `transformers_train.py FOLDER`."""

import sys

import torchvision_here  # isort: skip  # noqa: F401
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        return {"x": torch.ones(4), "labels": torch.ones(1)}


if __name__ == "__main__":
    args = TrainingArguments(
        output_dir=sys.argv[1], max_steps=16, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=args, train_dataset=Rows())
    trainer.train()
    print("steps", trainer.state.global_step)
