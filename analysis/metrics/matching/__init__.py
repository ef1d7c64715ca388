"""The same collective on every rank: which calls belong together, by what right, and how sure that is."""
