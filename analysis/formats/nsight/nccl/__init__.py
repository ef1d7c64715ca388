"""Marks of NCCL in an export: its functions with their arguments, and communicators."""
