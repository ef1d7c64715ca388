"""A run played again from what waits for what: how well that explains its steps, and what other steps it would make."""
