"""Lightning's Trainer, as its documentation begins."""

import torchvision_here  # isort: skip  # noqa: F401
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Lit(), DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=2))
    print("steps", trainer.global_step)
