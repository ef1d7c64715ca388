"""Bandwidth of the links without training, and how a run compares with it."""
