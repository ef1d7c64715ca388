"""Place calls and collectives on common timelines, and find the offsets between clocks."""
