"""A run followed while it runs: a row for each profiling cycle, none lost and none twice."""
