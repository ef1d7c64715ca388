"""Combine readers and metrics: the tables of one run."""
