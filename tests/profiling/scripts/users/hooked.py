"""Trains with an optimizer per parameter, which steps in a hook of the backward pass, on ranks of torchrun."""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizers = {weight: torch.optim.Adam([weight], foreach=False) for weight in model.parameters()}

    def update(weight: torch.Tensor) -> None:
        dist.all_reduce(weight.grad)
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    for _ in range(12):
        model(torch.ones(4, 8)).sum().backward()
    print(f"rank {dist.get_rank()} ends\n", end="")  # in one piece
    dist.destroy_process_group()


main()
