"""The result of every reader of trace files, and what all readers need."""
