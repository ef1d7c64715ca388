"""Dumps of the flight recorder that hold durations, as a run without clocks: calls, collectives, waiting, bandwidth."""
