"""Calls and collectives on common timelines: which placement fits, and how far clocks are apart."""
