"""One profiler session, and the files beside its traces."""
