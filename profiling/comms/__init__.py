"""Measure collectives as nccl-tests does: what the links of this machine reach, without training."""
