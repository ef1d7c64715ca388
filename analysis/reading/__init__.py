"""Many trace files read on all cores, each of them once."""
