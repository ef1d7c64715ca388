"""What commands share: choices, checks of options, and groups of them. Knows no torch."""
