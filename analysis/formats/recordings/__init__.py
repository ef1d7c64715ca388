"""Recordings: the content of one trace file, column by column, small and quick to read."""
