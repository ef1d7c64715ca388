"""What one operator computes and moves, by its name and the shapes of its inputs; its category; peaks of devices."""
