"""The thresholds of verdicts. Explained in docs/metrics/verdicts.md."""

from __future__ import annotations

LEAST_SPLIT = 0.5  # of the calls' time must be split: below, too little is known
HIDDEN_BELOW = 0.1  # of the calls' time is exposed: below, it is hidden
LOSS_FROM = 0.05  # of a step is a loss: from there the verdict is about it; below, compute limits the run
COMPUTE_FROM = 0.9  # of a step is compute: from there it limits the run, unless a change gains as much as a loss
FIRST_FROM = 0.25  # of the largest loss that all share: from there what differs from others comes first
FIRST_FROM_IF_UNCERTAIN = 0.5  # likewise, where it may gain nothing
MIXED_FROM = 0.8  # of the largest price has the next one: from there none dominates
SKEW_FROM = 0.5  # of the exposed time is waiting: from there, skew
LATENCY_FACTOR = 2.0  # a transfer that takes less than twice the latency counts as latency
MENTIONED_FROM = 0.01
NAMED_FROM = 0.1  # of the exposed time is waiting: from there a verdict of transfer says for whom
