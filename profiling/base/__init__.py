"""What all commands share, and what knows no torch."""
