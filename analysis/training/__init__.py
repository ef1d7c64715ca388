"""Compare trainings: loss, accuracy and time after the same epochs."""
