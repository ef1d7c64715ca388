"""Callbacks of trainers. Each module imports its trainer, and no other one."""
