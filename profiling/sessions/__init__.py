"""One profiler session, and what is written beside its traces."""
