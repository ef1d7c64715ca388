"""Replay a run from what waits for what: how well that explains its steps, and how other steps would look."""
