"""What could be different in a run, and how its programs are changed for that."""
