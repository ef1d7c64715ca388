"""What the analysis reads from the files that a capture leaves beside its traces, and the one reader of them.

docs/run-directory.md lists every field, and which of them are read. The writer's records are in another package, which
is not imported. A test compares the two, field by field.
"""
