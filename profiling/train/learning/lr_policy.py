"""The learning rate of every step: linear scaling and gradual warm-up. Pure functions; knows no torch.

Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, sections 2.1
and 2.2. Its momentum correction (section 3) is for momentum that holds the learning rate. torch's SGD multiplies by the
rate after the momentum (v = m v + g; w = w - lr v, the paper's equation 9), which needs none.
"""

# The paper's reference: a learning rate of 0.1 for a minibatch of 256.
REFERENCE_BATCH = 256


def linearly_scaled(base_lr: float, global_batch: int, reference_batch: int) -> float:
    """The rate for `global_batch` samples per step, if `base_lr` is that for `reference_batch`.

    "When the minibatch size is multiplied by k, multiply the learning rate by k."
    """
    return base_lr * global_batch / reference_batch


def warmed_up(step: int, base_lr: float, full_lr: float, warmup_steps: int) -> float:
    """The rate of `step`, from 0, on the way from `base_lr` to `full_lr`.

    "Start from a learning rate of eta and increment it by a constant amount at each iteration such that it reaches
    k eta after" the warm-up: the first step has `base_lr`, and step `warmup_steps` is the first with `full_lr`. A full
    rate below the base (k < 1) needs no warming up: it holds from the first step.
    """
    if step >= warmup_steps or full_lr <= base_lr:
        return full_lr
    return base_lr + (full_lr - base_lr) * step / warmup_steps
