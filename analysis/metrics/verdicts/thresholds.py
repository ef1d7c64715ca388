"""The thresholds of verdicts. Explained in docs/metrics/verdicts.md."""

from __future__ import annotations

# Parts of the calls' time.
LEAST_SPLIT = 0.5  # if less is split into wait and transfer, too little is known
HIDDEN_BELOW = 0.1  # if less is exposed, the calls are hidden

# Parts of a step.
LOSS_FROM = 0.05  # a loss of that size is what the verdict is about; without one, compute limits the run
COMPUTE_FROM = 0.9  # that much compute limits the run, unless some change gains as much as a loss
MENTIONED_FROM = 0.01  # what is smaller is not mentioned

# Parts of the largest loss, or of the exposed time.
MIXED_FROM = 0.8  # if the second largest loss costs that part of the largest one, neither dominates
SKEW_FROM = 0.5  # if that part of the exposed time is waiting, skew limits the run
NAMED_FROM = 0.1  # if that part is waiting, a verdict of transfer says for whom

LATENCY_FACTOR = 2.0  # a transfer that takes less than twice the latency counts as latency
# Within the least latency of NCCL, some 10 us, even PCIe 3 moves more: calls of less say nothing of bandwidth.
LITTLE_BYTES = 1 << 16
