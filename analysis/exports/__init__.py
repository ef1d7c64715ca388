"""What is measured, in the form in which other tools take it."""
