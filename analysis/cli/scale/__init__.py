"""Commands for runs of many ranks: recordings, what to trace, and what to watch."""
