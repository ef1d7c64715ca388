"""One module per command that is more than a table of a run: its options, and what it prints."""
