"""Collectives measured as nccl-tests does it: what the links of this machine reach, without any training."""
