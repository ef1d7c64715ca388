"""Lightning's Trainer on two ranks, which it starts itself: `lightning_callback.py {with,without,fails} [OUT]`.

LOGGED_TO names its loggers, with spaces between, which write to the current folder.
"""

import os
import sys

import torchvision_here  # isort: skip  # noqa: F401
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.losses: list[float] = []

    def training_step(self, batch, index):
        if sys.argv[1] == "fails" and index == 24:
            raise RuntimeError("of the script")
        loss = (self.layer(batch[0]) - 1).square().mean()
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def logger_of(name: str):
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

    match name:
        case "tensorboard":
            return TensorBoardLogger(".", "board")
        case "wandb":
            return WandbLogger(project="mine", save_dir=".", offline=True)
        case "mlflow":
            return MLFlowLogger("mine", tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
        case _:
            return CSVLogger(".", "numbers")


if __name__ == "__main__":
    how, *out = sys.argv[1:]
    callbacks = []
    if how != "without":
        from commtrace.integrations.lightning import CommtraceCallback

        callbacks = [CommtraceCallback(*out)]
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=2,
        logger=[logger_of(name) for name in os.environ.get("LOGGED_TO", "").split()] or False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    lit = Lit()
    rows = torch.arange(800.0).reshape(200, 4) / 800
    trainer.fit(lit, DataLoader(TensorDataset(rows), batch_size=2))
    if trainer.global_rank == 0:
        print("losses", lit.losses)
