"""A training whose settings come from Hydra, which changes to a folder of its own: `hydra_conf.py steps=16`."""

from pathlib import Path

import hydra
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

ConfigStore.instance().store(name="settings", node={"steps": 4, "hydra": {"job": {"chdir": True}}})


@hydra.main(version_base=None, config_name="settings")
def train(settings: DictConfig) -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(settings.steps):
        layer(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("steps", settings.steps, Path.cwd().name)


if __name__ == "__main__":
    train()
