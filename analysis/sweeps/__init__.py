"""Epoch times across runs: scaling, and communication by subtraction."""
