"""One module per command with options of its own."""
