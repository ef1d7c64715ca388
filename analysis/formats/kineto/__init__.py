"""Kineto's JSON, as torch.profiler writes it: the only place that knows its keys."""
