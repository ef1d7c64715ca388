"""What `layers` and `lab` measured: their files as tables."""
