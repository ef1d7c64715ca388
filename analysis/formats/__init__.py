"""Formats of trace files, each in a folder of its own."""
