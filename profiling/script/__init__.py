"""Training scripts of others, run under the profiler with no line of them changed."""
