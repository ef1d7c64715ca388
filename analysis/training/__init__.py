"""Trainings compared: loss, accuracy and time after the same epochs."""
