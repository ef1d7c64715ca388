"""Dumps of the flight recorder -> who is missing from which collective, and what nobody can know."""
