"""Recordings: what was read from one trace file, a column after another, small and quick to read."""
