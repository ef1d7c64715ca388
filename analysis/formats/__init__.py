"""Formats of trace files, one folder each."""
