"""Many trace files read on as many cores as there are, each of them once."""
