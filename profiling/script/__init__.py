"""Run training scripts under the profiler, unchanged."""
