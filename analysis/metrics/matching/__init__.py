"""The same collective on every rank: which calls belong together, on what evidence, and how certain that is."""
