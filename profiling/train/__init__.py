"""`train`: a plain training loop under the profiler, and training in epochs before it."""
