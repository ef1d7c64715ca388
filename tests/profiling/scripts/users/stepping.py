"""Trains in functions that end a step, three optimizer steps in each: one here, one in a class, one in a module."""

import torch
from stepping_module import Trainer, train_three

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step() -> str:
    train_three(model, optimizer)
    return "trained"


class Loop:
    class Inner:
        @staticmethod
        def step() -> str:
            return train_step()


for _ in range(7):
    assert Loop.Inner.step() == "trained"
    Trainer().step()
print("ends", __name__, train_step.__name__)
