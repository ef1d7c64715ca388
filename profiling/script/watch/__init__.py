"""What watches a process of a script while it runs, and captures it."""
