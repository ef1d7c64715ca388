"""Watch the process of a running script, and capture it."""
