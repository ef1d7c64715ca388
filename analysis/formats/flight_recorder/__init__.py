"""Dumps of PyTorch's flight recorder: what every rank issued last, and what of it was done."""
