"""Calls and collectives laid on common timelines: which placement fits, and how far clocks are apart."""
