"""Changes of a run, and how its programs are changed for them."""
