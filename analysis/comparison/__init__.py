"""Compare captures of two configurations."""
