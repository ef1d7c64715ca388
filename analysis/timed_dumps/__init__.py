"""Flight recorder dumps with durations as a run without clocks: calls, collectives, waiting, bandwidth."""
